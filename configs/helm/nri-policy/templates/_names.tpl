{{/* The port of the daemon's own HTTP server; empty where it has none. */}}
{{- define "nri-policy.port" -}}
{{- regexFind "[0-9]+$" (dig "instrumentation" "httpEndpoint" "" .Values.config) -}}
{{- end }}

{{- define "nri-policy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}
