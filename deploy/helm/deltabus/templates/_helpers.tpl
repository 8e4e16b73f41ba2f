{{- define "deltabus.labels" -}}
app.kubernetes.io/name: deltabus
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "deltabus.metadata" -}}
name: {{ .Release.Name }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "deltabus.labels" . | nindent 2 }}
{{- end }}

{{/* Cluster roles have no namespace, so the name contains the namespace of the release. */}}
{{- define "deltabus.role" -}}
{{ .Release.Namespace }}-{{ .Release.Name }}
{{- end }}
