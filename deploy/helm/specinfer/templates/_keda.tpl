{{/* Scales verifiers by the requests waiting at the gateways. Takes `root`, `role`, `values`, `kind` of the workload */}}
{{- define "specinfer.keda" -}}
{{- $keda := .values.keda }}
{{- if gt (int $keda.minReplicas) (int $keda.maxReplicas) }}
{{- fail (printf "%s.keda: minReplicas %v is above maxReplicas %v" .role $keda.minReplicas $keda.maxReplicas) }}
{{- end -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{- include "specinfer.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: {{ .kind }}, name: {{ include "specinfer.name" . }}}
  minReplicaCount: {{ $keda.minReplicas }}
  maxReplicaCount: {{ $keda.maxReplicas }}
  pollingInterval: {{ $keda.pollingInterval }}
  cooldownPeriod: {{ $keda.cooldownPeriod }}
  triggers:
    - type: prometheus
      metadata:
        serverAddress: {{ $keda.serverAddress }}
        query: sum(specinfer_num_requests_waiting{namespace={{ .root.Release.Namespace | quote }}})
        threshold: {{ $keda.threshold | quote }}
{{- end }}
