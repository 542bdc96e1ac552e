{{- /* A Job that leaves one remote (bridge leave), and what its account may do for that in addition:
permissions.HOME_LEAVE and the stop of its own Deployment, which a test compares. The context is that of
"bridge.remote" with `purpose`: "leave" for an entry with state leaving, or "uninstall" for the hook of
helm uninstall. */ -}}
{{- define "bridge.leave" }}
{{- $role := printf "%s:%s" (include "bridge.role" .) .purpose }}
{{- $meta := include "bridge.leaveMeta" (list . "-1") }}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $role }}
  {{- $meta | nindent 2 }}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [list, delete]}
  - {apiGroups: [""], resources: [pods/eviction], verbs: [create]}
  - apiGroups: [certificates.k8s.io]
    resources: [certificatesigningrequests]
    verbs: [list, delete]
  - apiGroups: [""]
    resources: [nodes]
    verbs: [list, delete]
    resourceNames: [{{ .Values.node | quote }}]
  - {apiGroups: [""], resources: [namespaces], verbs: [get], resourceNames: [cluster-bridge]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $role }}
  {{- $meta | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $role | quote }}}
{{ include "bridge.subjects" . }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $role }}
  namespace: kube-node-lease
  {{- $meta | nindent 2 }}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [get, patch, delete]
    resourceNames: [{{ .Values.node | quote }}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $role }}
  namespace: cluster-bridge
  {{- $meta | nindent 2 }}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [delete]
    resourceNames: [{{ printf "election-%s" .Values.node }}, namespaces.cluster-bridge.io]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $role }}:stop
  namespace: {{ .Release.Namespace }}
  {{- $meta | nindent 2 }}
rules:
  # Not the Deployment itself: its pods could mount the Secrets of other remotes.
  - apiGroups: [apps]
    resources: [deployments/scale]
    verbs: [patch]
    resourceNames: [{{ include "bridge.name" . }}]
  - apiGroups: [apps]
    resources: [deployments]
    verbs: [get]
    resourceNames: [{{ include "bridge.name" . }}]
  - {apiGroups: [""], resources: [pods], verbs: [list]}
{{- range list (list "kube-node-lease" "") (list "cluster-bridge" "") (list .Release.Namespace ":stop") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $role }}{{ index . 1 }}
  namespace: {{ index . 0 }}
  {{- $meta | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ printf "%s%s" $role (index . 1) | quote }}}
{{ include "bridge.subjects" $ }}
{{- end }}
---
{{- $pod := include "bridge.leavePod" . }}
{{- $name := regexReplaceAll "[-.]+$" (include "bridge.name" . | trunc 44) "" }}
apiVersion: batch/v1
kind: Job
metadata:
  # A Job is immutable: another pod is another Job. Its name is also a label, so it has 63 characters at most.
  name: {{ printf "%s-%s-%s" $name .purpose (sha256sum $pod | trunc 8) }}
  namespace: {{ .Release.Namespace }}
  {{- include "bridge.leaveMeta" (list . "0") | nindent 2 }}
spec:
  {{- if eq .purpose "leave" }}
  # Until the node has left.
  backoffLimit: 1000000
  {{- else }}
  backoffLimit: 2
  {{- end }}
  template:
    {{- $pod | nindent 4 }}
{{- end }}

{{- define "bridge.leavePod" -}}
metadata:
  labels:
    app.kubernetes.io/name: cluster-bridge-leave
    app.kubernetes.io/instance: {{ include "bridge.name" . }}
spec:
  restartPolicy: {{ if eq .purpose "leave" }}OnFailure{{ else }}Never{{ end }}
  serviceAccountName: {{ include "bridge.name" . }}
  {{- include "bridge.pod" (include "bridge.labels" .) | nindent 2 }}
  containers:
    - name: leave
      image: {{ include "bridge.image" . }}
      imagePullPolicy: IfNotPresent
      args:
        - leave
        - {{ .Values.node | quote }}
        - --kubeconfig=/etc/cluster-bridge/kubeconfig
        - --deployment={{ .Release.Namespace }}/{{ include "bridge.name" . }}
        - --drain
        - --yes
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      {{- include "bridge.container" . | nindent 6 }}
      {{- include "bridge.mounts" . | nindent 6 }}
  {{- include "bridge.volumes" . | nindent 2 }}
{{- end }}

{{- /* Labels and annotations: (list context weight-of-the-hook). */ -}}
{{- define "bridge.leaveMeta" -}}
{{- $ := index . 0 -}}
labels:
  {{- include "bridge.labels" $ | nindent 2 }}
{{- if eq $.purpose "uninstall" }}
annotations:
  helm.sh/hook: pre-delete
  helm.sh/hook-weight: {{ index . 1 | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
  helm.sh/hook-output-log-policy: hook-failed
{{- end }}
{{- end }}
