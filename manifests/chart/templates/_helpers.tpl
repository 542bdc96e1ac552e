{{- define "bridge.name" -}}
cluster-bridge-{{ .Values.node }}
{{- end }}

{{- define "bridge.labels" -}}
app.kubernetes.io/name: cluster-bridge
app.kubernetes.io/instance: {{ include "bridge.name" . }}
{{- end }}

{{- /* Of the roles. Two accounts of one cluster share none. */ -}}
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

{{- /* What binds the role of a namespace to the account there: (list context namespace). */ -}}
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
  kubernetes.io/description: What Cluster Bridge takes for its virtual node and the pods on it
{{- with index . 1 }}
namespace: {{ . }}
{{- end }}
{{- end }}
