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

{{/* Roles of the cluster have no namespace: those of two releases differ by name. */}}
{{- define "deltabus.role" -}}
{{ .Release.Namespace }}-{{ .Release.Name }}
{{- end }}
