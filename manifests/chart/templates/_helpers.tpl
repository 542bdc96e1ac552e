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

{{- /* The name of the webhook's objects, a DNS label: one of them is a Service. */ -}}
{{- define "bridge.webhook" -}}
{{- $name := printf "%s-offload" (include "bridge.name" .) -}}
{{- $plain := $name | replace "." "-" -}}
{{- if and (eq $plain $name) (le (len $name) 63) -}}
{{ $name }}
{{- else -}}
{{ regexReplaceAll "-+$" (trunc 46 $plain) "" }}-{{ sha256sum $name | trunc 16 }}
{{- end -}}
{{- end }}

{{- define "bridge.webhookLabels" -}}
{{ include "bridge.labels" . }}
app.kubernetes.io/component: offload-webhook
{{- end }}

{{- /* The labels of the webhook's pods; the bridges' Deployment and budget must not select them. */ -}}
{{- define "bridge.webhookPods" -}}
app.kubernetes.io/name: cluster-bridge-offload-webhook
app.kubernetes.io/instance: {{ include "bridge.name" . }}
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
