{{- /* A Job that leaves one remote (bridge leave), and what its account may do for that in addition:
permissions.HOME_LEAVE, which a test compares. The context is that of "bridge.remote" with `purpose`:
"leave" for an entry with state leaving, or "uninstall" for the hook of helm uninstall, which also stops
the bridges. */ -}}
{{- define "bridge.leave" }}
{{- $role := printf "%s:%s" (include "bridge.role" .) .purpose }}
{{- $meta := include "bridge.leaveMeta" . }}
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
{{- range $namespace := list "kube-node-lease" "cluster-bridge" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $role }}
  namespace: {{ $namespace }}
  {{- $meta | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $role | quote }}}
{{ include "bridge.subjects" $ }}
{{- end }}
{{- if eq .purpose "uninstall" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $role }}:stop
  namespace: {{ .Release.Namespace }}
  {{- $meta | nindent 2 }}
rules:
  - apiGroups: [apps]
    resources: [deployments]
    verbs: [get, patch]
    resourceNames: [{{ include "bridge.name" . }}]
  - {apiGroups: [""], resources: [pods], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $role }}:stop
  namespace: {{ .Release.Namespace }}
  {{- $meta | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ printf "%s:stop" $role | quote }}}
{{ include "bridge.subjects" . }}
{{- end }}
---
{{- $pod := include "bridge.leavePod" . }}
apiVersion: batch/v1
kind: Job
metadata:
  # A Job is immutable: another pod is another Job.
  name: {{ printf "%s-%s-%s" (include "bridge.name" .) .purpose (sha256sum $pod | trunc 8) }}
  namespace: {{ .Release.Namespace }}
  {{- $meta | replace "hook-weight: \"-1\"" "hook-weight: \"0\"" | nindent 2 }}
spec:
  # It fails until the bridges have stopped and the remote answers.
  backoffLimit: 20
  template:
    {{- $pod | nindent 4 }}
{{- end }}

{{- define "bridge.leavePod" -}}
metadata:
  labels:
    app.kubernetes.io/name: cluster-bridge-leave
    app.kubernetes.io/instance: {{ include "bridge.name" . }}
spec:
  restartPolicy: Never
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
        - --drain
        - --yes
        {{- if eq .purpose "uninstall" }}
        - --deployment={{ .Release.Namespace }}/{{ include "bridge.name" . }}
        {{- end }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      {{- include "bridge.container" . | nindent 6 }}
      {{- include "bridge.mounts" . | nindent 6 }}
  {{- include "bridge.volumes" . | nindent 2 }}
{{- end }}

{{- define "bridge.leaveMeta" -}}
labels:
  {{- include "bridge.labels" . | nindent 2 }}
{{- if eq .purpose "uninstall" }}
annotations:
  helm.sh/hook: pre-delete
  helm.sh/hook-weight: "-1"
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
{{- end }}
