{{/* Parts of pods. Each template takes a dict of `root`, `role` and the role's `values`; its comment lists more keys. */}}

{{/* `grace`: seconds until a pod is killed; `account`: role of the ServiceAccount */}}
{{- define "specinfer.pod" -}}
serviceAccountName: {{ include "specinfer.fullname" .root }}-{{ .account | default .role }}
automountServiceAccountToken: false
# service links would set variables such as SPECINFER_GATEWAY_PORT, which services refuse as unknown settings
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .grace }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user | default 10001 }}
  runAsGroup: {{ .user | default 10001 }}
  fsGroup: {{ .user | default 10001 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "specinfer.selector" . | nindent 8 }}
{{- end }}

{{- define "specinfer.extra-containers" -}}
{{- with .values.extraContainers }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- define "specinfer.container-security" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Prints a number in full: Go would print a large one as 1e+06. */}}
{{- define "specinfer.text" -}}
{{ if kindIs "float64" . }}{{ toJson . | quote }}{{ else }}{{ toString . | quote }}{{ end }}
{{- end }}

{{/* `settings`: settings that the chart derives, which `values.settings` override. Without `settings`, none are set. */}}
{{- define "specinfer.env" -}}
{{- $settings := dict -}}
{{- with .settings }}{{ $settings = merge (deepCopy $.values.settings) . }}{{ end -}}
env:
  # the first two are set for speed, as in `specinfer up`
  - {name: OMP_WAIT_POLICY, value: PASSIVE}
  - {name: GRPC_EXPERIMENTS, value: "-event_engine_client,-event_engine_listener"}
  # the root file system is read-only: /tmp and /models are volumes
  - {name: HOME, value: /tmp}
  - {name: SPECINFER_CACHE, value: /models}
  {{- range $name, $value := .root.Values.environment }}
  - {name: {{ $name }}, value: {{ include "specinfer.text" $value }}}
  {{- end }}
  {{- range $name, $value := $settings }}
  - {name: SPECINFER_{{ upper $.role }}_{{ upper $name }}, value: {{ include "specinfer.text" $value }}}
  {{- end }}
  {{- with .values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "specinfer.volume-mounts" -}}
- {name: models, mountPath: /models}
- {name: tmp, mountPath: /tmp}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "specinfer.volumes" -}}
{{- if .values.models.existingClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ .values.models.existingClaim }}}
{{- else if not .values.models.size }}
- name: models
  emptyDir: {}
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A persistent claim for models, which take minutes to pull. */}}
{{- define "specinfer.models-claim" -}}
{{- with .values.models }}
{{- if and .size (not .existingClaim) }}
volumeClaimTemplates:
  - metadata:
      name: models
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .storageClassName }}
      storageClassName: {{ . }}
      {{- end }}
      resources:
        requests: {storage: {{ .size }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Pulls a model, and those of `models.pull`, before the service starts. `model`; `flags` of `specinfer models pull` */}}
{{- define "specinfer.pull" -}}
{{- if .values.pull.enabled }}
initContainers:
  {{- range $index, $model := prepend (.values.models.pull | default list) .model }}
  - name: model{{ if $index }}-{{ $index }}{{ end }}
    {{- include "specinfer.image" (merge (dict "image" "tools") $) | nindent 4 }}
    command: [specinfer, models, pull, {{ with $.flags }}{{ . }}, {{ end }}{{ $model | quote }}]
    {{- include "specinfer.env" $ | nindent 4 }}
      {{- with $.root.Values.hub.existingSecret }}
      - name: HF_TOKEN
        valueFrom:
          secretKeyRef: {name: {{ . }}, key: {{ $.root.Values.hub.key }}}
      {{- end }}
    resources: {{- toYaml $.values.pull.resources | nindent 6 }}
    {{- include "specinfer.container-security" $ | nindent 4 }}
    volumeMounts: {{- include "specinfer.volume-mounts" $ | nindent 6 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Probes of gRPC's health service. `port`; `service`: its own name, which readiness asks for;
     `startupSeconds`. Kubelets speak no TLS: then the port is probed, which a service opens when it can work. */}}
{{- define "specinfer.probes" -}}
{{- $tls := .root.Values.tls.enabled -}}
startupProbe:
  {{ if $tls }}tcpSocket: {port: grpc}{{ else }}grpc: {port: {{ .port }}, service: liveness}{{ end }}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ div (int .startupSeconds) 2 }}
# `liveness` checks that the process answers; the other name also checks the services that it needs
livenessProbe:
  {{ if $tls }}tcpSocket: {port: grpc}{{ else }}grpc: {port: {{ .port }}, service: liveness}{{ end }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
{{- if and $tls (eq .role "gateway") }}
  exec:
    command:
      - python
      - -m
      - specinfer.service.health
      - --tls-ca=/etc/specinfer/tls/ca.crt
      - --tls-name={{ include "specinfer.name" . }}
      - 127.0.0.1:50051
  # each probe starts a process
  periodSeconds: 5
  timeoutSeconds: 5
{{- else }}
  {{ if $tls }}tcpSocket: {port: grpc}{{ else }}grpc: {port: {{ .port }}, service: {{ .service }}}{{ end }}
  periodSeconds: 2
  timeoutSeconds: 2
{{- end }}
  failureThreshold: 2
{{- end }}

{{/* Objects of a workload: account, budget, autoscaler. `kind` of the workload */}}
{{- define "specinfer.beside" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "specinfer.metadata" . | nindent 2 }}
  {{- with .values.serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- with .values.podDisruptionBudget }}
{{- if .enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "specinfer.metadata" $ | nindent 2 }}
spec:
  {{- include "specinfer.budget" $ | nindent 2 }}
  selector:
    matchLabels: {{- include "specinfer.selector" $ | nindent 6 }}
{{- end }}
{{- end }}
{{- with .values.autoscaling }}
{{- if .enabled }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail (printf "%s.autoscaling: minReplicas %v is above maxReplicas %v" $.role .minReplicas .maxReplicas) }}
{{- end }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{- include "specinfer.metadata" $ | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: {{ $.kind }}, name: {{ include "specinfer.name" $ }}}
  {{- toYaml (omit . "enabled") | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* minAvailable or maxUnavailable; Kubernetes refuses both together. */}}
{{- define "specinfer.budget" -}}
{{- $given := dict -}}
{{- range $name, $value := omit .values.podDisruptionBudget "enabled" }}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $given $name $value }}{{ end }}
{{- end }}
{{- if ne (len $given) 1 }}
{{- fail (printf "%s.podDisruptionBudget: needs either minAvailable or maxUnavailable, and null for the other" .role) }}
{{- end }}
{{- toYaml $given }}
{{- end }}

{{/* How a Deployment replaces pods: rolling, or all at once (Recreate). */}}
{{- define "specinfer.strategy" -}}
{{- $strategy := .values.strategy -}}
{{- if eq (toString $strategy.type) "Recreate" }}{{ $strategy = omit $strategy "rollingUpdate" }}{{ end }}
{{- toYaml $strategy }}
{{- end }}

{{/* `replicas`, unless an autoscaler sets it: `apply` would overwrite the autoscaler's value */}}
{{- define "specinfer.replicas" -}}
{{- $keda := .values.keda | default dict }}
{{- if not (or (and .values.autoscaling .values.autoscaling.enabled) $keda.enabled) }}
replicas: {{ .values.replicas }}
{{- end }}
{{- end }}

{{/* `checksum` of the chart's files that a pod reads at start: when it changes, pods are replaced */}}
{{- define "specinfer.annotations" -}}
{{- if or .checksum .values.podAnnotations }}
annotations:
  {{- with .checksum }}
  checksum/specinfer: {{ . | sha256sum | trunc 16 | quote }}
  {{- end }}
  {{- with .values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
