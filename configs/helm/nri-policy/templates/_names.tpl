{{/* The port of the daemon's own HTTP server; empty where it has none. */}}
{{- define "nri-policy.port" -}}
{{- regexFind "[0-9]+$" (dig "instrumentation" "httpEndpoint" "" .Values.config) -}}
{{- end }}

{{- define "nri-policy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{/* Whether the settings have the daemon read pods; YAML 1.1 makes a plain `off` false. */}}
{{- define "nri-policy.reads-pods" -}}
{{- $agent := dig "agent" (dict) .Values.config -}}
{{- $specs := dig "podSpecs" "auto" $agent | toString -}}
{{- if or (not (has $specs (list "off" "false"))) (dig "podResourceAPI" false $agent) -}}
true
{{- end -}}
{{- end }}
