{{- /* The rights of bridge/rbac/permissions.py; a test compares. */ -}}
{{- define "bridge.permissions" }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "bridge.name" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "bridge.roleMeta" (list . "") | nindent 2 }}
rules:
  - apiGroups: [""]
    resources: [nodes]
    verbs: [get, patch]
    resourceNames: [{{ .Values.node | quote }}]
  - {apiGroups: [""], resources: [events], verbs: [get]}
  {{- if ne .homeIdentity "node" }}
  - {apiGroups: [""], resources: [nodes], verbs: [create]}
  - apiGroups: [""]
    resources: [nodes]
    verbs: [list, watch]
    resourceNames: [{{ .Values.node | quote }}]
  - apiGroups: [""]
    resources: [nodes/status]
    verbs: [patch]
    resourceNames: [{{ .Values.node | quote }}]
  - {apiGroups: [""], resources: [pods], verbs: [list, watch, delete]}
  - {apiGroups: [""], resources: [pods/status], verbs: [patch]}
  - {apiGroups: [""], resources: [events], verbs: [create, patch]}
  - {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
  - {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
  {{- end }}
  {{- if or (ne .servingCertificate "self-signed") (eq .homeIdentity "node") }}
  - apiGroups: [certificates.k8s.io]
    resources: [certificatesigningrequests]
    verbs: [create, list, watch]
  {{- end }}
  {{- if has .network (list "auto" "relay") }}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
  {{- end }}
  {{- if eq .storage "provision" }}
  - {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch]}
  - apiGroups: [""]
    resources: [persistentvolumes]
    verbs: [create, list, watch, patch, delete]
  - {apiGroups: [storage.k8s.io], resources: [storageclasses], verbs: [list, watch]}
  - apiGroups: [snapshot.storage.k8s.io]
    resources: [volumesnapshots, volumesnapshotclasses]
    verbs: [list, watch]
  - apiGroups: [snapshot.storage.k8s.io]
    resources: [volumesnapshotcontents]
    verbs: [list, watch, patch]
  - apiGroups: [snapshot.storage.k8s.io]
    resources: [volumesnapshotcontents/status]
    verbs: [patch]
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "bridge.role" . }}:home
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "bridge.role" . }}:home
{{ include "bridge.subjects" . }}
{{- if eq .serviceAccounts "home" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "bridge.roleMeta" (list . "default") | nindent 2 }}
rules:
  - apiGroups: [discovery.k8s.io]
    resources: [endpointslices]
    verbs: [get]
    resourceNames: [kubernetes]
---
{{ include "bridge.bound" (list . "default") }}
{{- end }}
{{- if ne .homeIdentity "node" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "bridge.roleMeta" (list . "kube-node-lease") | nindent 2 }}
rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [patch]
    resourceNames: [{{ .Values.node | quote }}]
---
{{ include "bridge.bound" (list . "kube-node-lease") }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "bridge.roleMeta" (list . "cluster-bridge") | nindent 2 }}
rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [get, list, watch, patch]
    resourceNames: [{{ printf "election-%s" .Values.node }}]
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [get, patch]
    resourceNames: [namespaces.cluster-bridge.io]
  {{- if eq .storage "provision" }}
  - apiGroups: [storage.k8s.io]
    resources: [csistoragecapacities]
    verbs: [create, list, watch, patch, delete]
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get]}
  {{- end }}
---
{{ include "bridge.bound" (list . "cluster-bridge") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "bridge.roleMeta" (list . "kube-system") | nindent 2 }}
rules:
  - {apiGroups: [""], resources: [namespaces], verbs: [get], resourceNames: [kube-system]}
  - apiGroups: [""]
    resources: [configmaps]
    verbs: [get, list, watch]
    resourceNames: [extension-apiserver-authentication]
---
{{ include "bridge.bound" (list . "kube-system") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "bridge.role" . }}:state
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
  annotations:
    kubernetes.io/description: Lets Cluster Bridge keep the node's certificate and the remote's renewed token
rules:
  - apiGroups: [""]
    resources: [secrets]
    verbs: [get, list, watch, patch]
    resourceNames: [{{ include "bridge.state" . }}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "bridge.role" . }}:state
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "bridge.role" . }}:state
{{ include "bridge.subjects" . }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "bridge.role" . }}:home-namespace
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
  annotations:
    kubernetes.io/description: Permissions of Cluster Bridge in a namespace with pods on the node; bind it there
rules:
  - {apiGroups: [""], resources: [namespaces], verbs: [get]}
  {{- if eq .homeIdentity "node" }}
  - {apiGroups: [""], resources: [services], verbs: [list, watch]}
  {{- else }}
  - {apiGroups: [""], resources: [services, configmaps, secrets], verbs: [list, watch]}
  {{- end }}
  - {apiGroups: [""], resources: [events], verbs: [list]}
  {{- if and (eq .serviceAccounts "home") (ne .homeIdentity "node") }}
  - {apiGroups: [""], resources: [serviceaccounts/token], verbs: [create]}
  {{- end }}
  {{- if has .network (list "auto" "flat") }}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
  {{- end }}
  {{- if has .network (list "auto" "relay") }}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [create, patch, delete]}
  - {apiGroups: [""], resources: [pods], verbs: [get, list]}
  {{- end }}
  {{- if eq .storage "provision" }}
  - apiGroups: [""]
    resources: [persistentvolumeclaims, persistentvolumeclaims/status]
    verbs: [patch]
  {{- end }}
{{- if .Values.allNamespaces }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "bridge.role" . }}:home-namespace
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "bridge.role" . }}:home-namespace
{{ include "bridge.subjects" . }}
{{- end }}
{{- range .Values.bind }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "bridge.role" $ }}:home-namespace
  namespace: {{ . }}
  labels:
    {{- include "bridge.labels" $ | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "bridge.role" $ }}:home-namespace
{{ include "bridge.subjects" $ }}
{{- end }}
{{- end }}
