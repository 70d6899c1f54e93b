{{- define "specinfer.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- trunc 40 $name | trimSuffix "-" -}}
{{- end }}

{{/* The following templates take a dict of `root`, `role` and, where needed, the role's `values`. */}}

{{- define "specinfer.name" -}}
{{ include "specinfer.fullname" .root }}-{{ .role }}
{{- end }}

{{- define "specinfer.selector" -}}
app.kubernetes.io/name: specinfer-{{ .role }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "specinfer.pod-labels" -}}
{{ include "specinfer.selector" . }}
app.kubernetes.io/part-of: specinfer
{{- end }}

{{/* Labels of a pod: those by which it is selected, then its own. */}}
{{- define "specinfer.template-labels" -}}
{{ include "specinfer.pod-labels" . }}
{{- with .values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "specinfer.metadata" -}}
name: {{ include "specinfer.name" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "specinfer.pod-labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "specinfer.image" -}}
{{- $image := .root.Values.image -}}
{{- $name := printf "specinfer-%s" .image -}}
{{- with $image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- with get $image.digests .image -}}
image: {{ $name }}@{{ . }}
{{- else -}}
image: {{ $name }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{/* Role of the pods that serve OpenAI's API. */}}
{{- define "specinfer.api-role" -}}
{{ ternary "serve" "http" .Values.serve.enabled }}
{{- end }}

{{- define "specinfer.api-service" -}}
{{- if not (or .Values.serve.enabled .Values.http.enabled) }}
{{- fail "ingress.enabled, httpRoute.enabled: lead to OpenAI's API, so http.enabled or serve.enabled must be true" }}
{{- end -}}
{{ include "specinfer.fullname" . }}-{{ include "specinfer.api-role" . }}
{{- end }}

{{- define "specinfer.redis-access" -}}
{{ .Values.redis.password }} {{ .Values.redis.url }}
{{- end }}

{{- define "specinfer.redis-secret" -}}
{{ .Values.redis.existingSecret | default (printf "%s-redis" (include "specinfer.fullname" .)) }}
{{- end }}
