{{/* A pod of a verifier: the only one, or the leader or a worker of a group. Keys: `this`, and `worker` for a worker */}}
{{- define "specinfer.verifier-pod" -}}
{{- $root := .this.root }}
{{- $values := .this.values }}
{{- $pod := merge (dict "role" (ternary "verifier-worker" "verifier" .worker)) .this }}
{{- $settings := dict "listen" "0.0.0.0:50052" "metrics_host" "0.0.0.0" "metrics_port" 9465 "model" $root.Values.model }}
{{- if $root.Values.tls.enabled }}
{{- $settings = merge $settings (dict
  "tls_certificate" "/etc/specinfer/tls/tls.crt"
  "tls_key" "/etc/specinfer/tls/tls.key"
  "tls_client_ca" "/etc/specinfer/tls/ca.crt") }}
{{- end -}}
metadata:
  labels: {{- include "specinfer.template-labels" $pod | nindent 4 }}
  {{- include "specinfer.annotations" $pod | nindent 2 }}
spec:
  {{- $grace := add 20 (mul 2 (int $values.settings.drain_seconds)) }}
  {{- include "specinfer.pod" (merge (dict "grace" $grace "account" "verifier") $pod) | nindent 2 }}
  {{- include "specinfer.pull" (merge (dict "model" $root.Values.model) .this) | nindent 2 }}
  containers:
    - name: {{ ternary "ranks" "verifier" .worker }}
      {{- include "specinfer.image" (merge (dict "image" "verifier") .this) | nindent 6 }}
      {{- if gt (int $values.group.size) 1 }}
      # torchrun starts the ranks of each pod. LWS_* are set by the LeaderWorkerSet
      command:
        - python
        - -m
        - torch.distributed.run
        - --nnodes=$(LWS_GROUP_SIZE)
        - --node-rank=$(LWS_WORKER_INDEX)
        - --nproc-per-node={{ $values.group.processes }}
        - --master-addr=$(LWS_LEADER_ADDRESS)
        - --master-port=29500
        - -m
        - verifier_svc
      {{- else }}
      command: [python, -m, verifier_svc]
      {{- end }}
      {{- with $values.extraArgs }}
      args: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- include "specinfer.env" (merge (dict "settings" $settings) .this) | nindent 6 }}
      {{- if not .worker }}
      ports:
        - {name: grpc, containerPort: 50052}
        - {name: metrics, containerPort: 9465}
      {{- include "specinfer.probes" (merge (dict "port" 50052 "service" "specinfer.v1.Verifier" "startupSeconds" $values.startupSeconds) .this) | nindent 6 }}
      {{- end }}
      resources: {{- toYaml $values.resources | nindent 8 }}
      {{- include "specinfer.container-security" .this | nindent 6 }}
      volumeMounts:
        {{- include "specinfer.volume-mounts" .this | nindent 8 }}
        {{- if $values.sharedMemory }}
        - {name: shared-memory, mountPath: /dev/shm}
        {{- end }}
        {{- if $root.Values.tls.enabled }}
        - {name: tls, mountPath: /etc/specinfer/tls, readOnly: true}
        {{- end }}
    {{- include "specinfer.extra-containers" .this | nindent 4 }}
  volumes:
    {{- include "specinfer.volumes" .this | nindent 4 }}
    {{- with $values.sharedMemory }}
    - name: shared-memory
      emptyDir: {medium: Memory, sizeLimit: {{ . }}}
    {{- end }}
    {{- if $root.Values.tls.enabled }}
    - name: tls
      secret: {secretName: {{ $root.Values.tls.secrets.verifier }}}
    {{- end }}
{{- end }}
