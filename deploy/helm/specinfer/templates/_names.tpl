{{- define "specinfer.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- trunc 40 $name | trimSuffix "-" -}}
{{- end }}

{{/* Those below take a dict of `root`, `role`, and where they need them `values` of the role. */}}

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
image: {{ with $image.registry }}{{ trimSuffix "/" . }}/{{ end }}specinfer-{{ .image }}:{{ $image.tag | default .root.Chart.AppVersion }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{- define "specinfer.redis-access" -}}
{{ .Values.redis.password }} {{ .Values.redis.url }}
{{- end }}

{{- define "specinfer.redis-secret" -}}
{{ .Values.redis.existingSecret | default (printf "%s-redis" (include "specinfer.fullname" .)) }}
{{- end }}
