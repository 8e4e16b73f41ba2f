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

{{/* Variables of the container. An extra variable replaces one of the same name that the configuration needs. */}}
{{- define "deltabus.env" -}}
{{- $extra := list }}
{{- range .Values.extraEnv }}
{{- $extra = append $extra .name }}
{{- end }}
{{- range .Values.secrets.env }}
{{- if not (has . $extra) }}
- name: {{ . }}
  valueFrom:
    secretKeyRef:
      name: {{ $.Release.Name }}-env
      key: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
