{{- /* The context of one remote: (list root entry). Values are those of the entry, over `defaults`. */ -}}
{{- define "bridge.remote" -}}
{{- $root := index . 0 -}}
{{- $values := mergeOverwrite (deepCopy $root.Values.defaults) (deepCopy (index . 1)) -}}
{{- if eq (empty $values.kubeconfig) (empty $values.existingSecret) -}}
{{- fail (printf "remotes: %s must have either kubeconfig or existingSecret" $values.name) -}}
{{- end -}}
{{- if and $values.allNamespaces $values.bind -}}
{{- fail (printf "remotes: %s has both allNamespaces and bind, its own or from defaults: set one of them to false or []" $values.name) -}}
{{- end -}}
{{- if has $root.Release.Namespace $values.bind -}}
{{- fail (printf "remotes: %s cannot bind namespace %s, which has the credentials of all remotes" $values.name $root.Release.Namespace) -}}
{{- end -}}
{{- $_ := set $values "node" $values.name -}}
{{- $_ := set $values "image" $root.Values.image -}}
{{- $options := $values.options | default dict -}}
{{- $context := dict "Values" $values "Release" $root.Release "Chart" (dict "AppVersion" $root.Chart.AppVersion) -}}
{{- /* Options of bridge join that determine permissions. */ -}}
{{- $_ := set $context "network" (get $options "network" | default "auto") -}}
{{- $_ := set $context "serviceAccounts" (get $options "service-accounts" | default "home") -}}
{{- $_ := set $context "servingCertificate" (get $options "serving-certificate" | default "auto") -}}
{{- $_ := set $context "homeIdentity" (get $options "home-identity" | default "auto") -}}
{{- $_ := set $context "storage" (get $options "storage" | default "auto") -}}
{{ $context | toJson }}
{{- end }}

{{- /* Arguments for options of bridge join, sorted by name. */ -}}
{{- define "bridge.arguments" -}}
{{- range $name, $value := . }}
{{- $text := $value }}
{{- if kindIs "map" $value }}
{{- $pairs := list }}
{{- range $key, $one := $value }}
{{- $pairs = append $pairs (printf "%s=%s" $key (kindIs "string" $one | ternary $one (toJson $one))) }}
{{- end }}
{{- $text = join "," $pairs }}
{{- else if kindIs "slice" $value }}
{{- $text = join "," $value }}
{{- else if not (kindIs "string" $value) }}
{{- $text = toJson $value }}
{{- end }}
{{- if not (kindIs "bool" $value) }}
- {{ printf "--%s=%s" $name $text | replace "$(" "$$(" | quote }}
{{- else if $value }}
- --{{ $name }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The name of objects that exist once for a release. */ -}}
{{- define "bridge.release" -}}
cluster-bridge.{{ .Release.Namespace }}.{{ .Release.Name }}
{{- end }}

{{- define "bridge.name" -}}
cluster-bridge-{{ .Values.node }}
{{- end }}

{{- /* The name of the Secret that the bridges write. */ -}}
{{- define "bridge.state" -}}
bridge-state-{{ .Values.node }}
{{- end }}

{{- define "bridge.labels" -}}
app.kubernetes.io/name: cluster-bridge
app.kubernetes.io/instance: {{ include "bridge.name" . }}
{{- end }}

{{- /* The prefix of role names, unique for each ServiceAccount of a cluster. */ -}}
{{- define "bridge.role" -}}
{{- if eq .Release.Namespace (include "bridge.name" .) -}}
{{ include "bridge.name" . }}
{{- else -}}
{{ .Release.Namespace }}:{{ include "bridge.name" . }}
{{- end -}}
{{- end }}

{{- define "bridge.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "bridge.name" . }}
    namespace: {{ .Release.Namespace }}
{{- end }}

{{- /* The RoleBinding for a namespace: (list context namespace). */ -}}
{{- define "bridge.bound" -}}
{{- $ := index . 0 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "bridge.role" $ }}:home
  namespace: {{ index . 1 }}
  labels:
    {{- include "bridge.labels" $ | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "bridge.role" $ }}:home
{{ include "bridge.subjects" $ }}
{{- end }}

{{- define "bridge.roleMeta" -}}
{{- $ := index . 0 -}}
name: {{ include "bridge.role" $ }}:home
labels:
  {{- include "bridge.labels" $ | nindent 2 }}
annotations:
  kubernetes.io/description: Permissions of Cluster Bridge for its virtual node and the pods on it
{{- with index . 1 }}
namespace: {{ . }}
{{- end }}
{{- end }}

{{- /* The name of the webhook's objects, which exist once; a DNS label: one of them is a Service. */ -}}
{{- define "bridge.webhook" -}}
{{- $name := printf "cluster-bridge-%s-offload" .Release.Name -}}
{{- $plain := $name | replace "." "-" -}}
{{- if and (eq $plain $name) (le (len $name) 63) -}}
{{ $name }}
{{- else -}}
{{ regexReplaceAll "-+$" (trunc 46 $plain) "" }}-{{ sha256sum $name | trunc 16 }}
{{- end -}}
{{- end }}

{{- define "bridge.webhookLabels" -}}
app.kubernetes.io/name: cluster-bridge
app.kubernetes.io/instance: {{ include "bridge.webhook" . }}
app.kubernetes.io/component: offload-webhook
{{- end }}

{{- /* The labels of the webhook's pods. */ -}}
{{- define "bridge.webhookPods" -}}
app.kubernetes.io/name: cluster-bridge-offload-webhook
app.kubernetes.io/instance: {{ include "bridge.webhook" . }}
{{- end }}

{{- /* The common part of pod specs; the context is the pods' labels. */ -}}
{{- define "bridge.pod" -}}
enableServiceLinks: false
terminationGracePeriodSeconds: 20
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
affinity:
  # A bridge on its own virtual node would depend on itself.
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: cluster-bridge.io/virtual-node, operator: DoesNotExist}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          labelSelector:
            matchLabels:
              {{- . | nindent 14 }}
          topologyKey: kubernetes.io/hostname
{{- end }}

{{- define "bridge.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- define "bridge.image" -}}
{{ .Values.image | default (printf "cluster-bridge:%s" .Chart.AppVersion) }}
{{- end }}

{{- define "bridge.mounts" -}}
volumeMounts:
  - {name: kubeconfig, mountPath: /etc/cluster-bridge, readOnly: true}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "bridge.volumes" -}}
volumes:
  - name: kubeconfig
    projected:
      sources:
        - secret: {name: {{ .Values.existingSecret | default (include "bridge.name" .) }}}
        - secret:
            name: {{ include "bridge.state" . }}
            items: [{key: renewed-token, path: renewed-token}]
            optional: true
      defaultMode: 0440
  # The TLS library reads certificates and keys from files; keep them off the disk.
  - name: tmp
    emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- end }}
