{{- /* The objects of one remote that run its bridge; the context is that of "bridge.remote". */ -}}
{{- define "bridge.process" }}
{{- if not .Values.existingSecret }}
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "bridge.name" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
type: Opaque
data:
  kubeconfig: {{ .Values.kubeconfig | b64enc }}
---
{{- end }}
# Empty: the bridges keep their state in it, and upgrades keep that.
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "bridge.state" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
type: Opaque
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "bridge.name" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "bridge.labels" . | nindent 6 }}
{{- if has .network (list "auto" "relay") }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "bridge.name" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "bridge.labels" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports:
        - {protocol: TCP, port: {{ .Values.port }}}
        - {protocol: TCP, port: 8081}
    - from:
        {{- range .Values.relayFrom }}
        {{- if contains "/" . }}
        - ipBlock: {cidr: {{ . | quote }}}
        {{- else }}
        - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ . | quote }}}}
        {{- end }}
        {{- else }}
        - namespaceSelector: {}
        {{- end }}
{{- end }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "bridge.name" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "bridge.labels" . | nindent 4 }}
  annotations:
    cluster-bridge.io/node: {{ .Values.node | quote }}
spec:
  {{- if ne .Values.state "leaving" }}
  replicas: {{ .Values.replicas }}
  {{- else }}
  # No replicas: one bridge serves until the Job scales the Deployment to 0, and upgrades keep that.
  {{- end }}
  revisionHistoryLimit: 3
  selector:
    matchLabels:
      {{- include "bridge.labels" . | nindent 6 }}
  # A new replica is a standby before an old one releases the node's lease.
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  template:
    metadata:
      labels:
        {{- include "bridge.labels" . | nindent 8 }}
      {{- if not .Values.existingSecret }}
      annotations:
        # A new credential starts a rollout.
        cluster-bridge.io/kubeconfig-hash: {{ .Values.kubeconfig | sha256sum | trunc 16 | quote }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "bridge.name" . }}
      {{- include "bridge.pod" (include "bridge.labels" .) | nindent 6 }}
      containers:
        - name: bridge
          image: {{ include "bridge.image" . }}
          imagePullPolicy: IfNotPresent
          args:
            - join
            - --kubeconfig=/etc/cluster-bridge/kubeconfig
            - --name={{ .Values.node }}
            - --address=$(POD_IP)
            - --port={{ .Values.port }}
            - --health-port=8081
            - --state-secret={{ include "bridge.state" . }}
            {{- if ne .servingCertificate "self-signed" }}
            - --cert-dir=/tmp/serving-certificate
            {{- end }}
            {{- include "bridge.arguments" .Values.options | nindent 12 }}
          env:
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
          ports:
            - {name: kubelet, containerPort: {{ .Values.port }}}
            - {name: health, containerPort: 8081}
          # The join checks run before the server starts, up to 14 seconds for each cluster.
          startupProbe:
            httpGet: {path: /livez, port: health}
            timeoutSeconds: 5
            periodSeconds: 2
            failureThreshold: 30
          livenessProbe:
            httpGet: {path: /livez, port: health}
            timeoutSeconds: 5
            periodSeconds: 20
            failureThreshold: 3
          readinessProbe:
            httpGet: {path: /readyz, port: health}
            timeoutSeconds: 5
            periodSeconds: 5
            failureThreshold: 3
          resources:
            {{- toYaml .Values.resources | nindent 12 }}
          {{- include "bridge.container" . | nindent 10 }}
          {{- include "bridge.mounts" . | nindent 10 }}
      {{- include "bridge.volumes" . | nindent 6 }}
{{- end }}
