{{/* Base name of every object: the release's name, with the chart's name once. */}}
{{- define "weft.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Cluster-wide objects carry the namespace too, so that two releases of one name do not collide. */}}
{{- define "weft.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "weft.fullname" .) -}}
{{- end -}}

{{/* Labels that select a component's pods. Call with (list . "operator"). */}}
{{- define "weft.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: weft
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* All labels of a component's objects. Call with (list . "operator"). */}}
{{- define "weft.labels" -}}
{{- $root := index . 0 -}}
{{ include "weft.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{/* Reference of one of Weft's own images. Call with (list . "weft-router" .Values.router.image "router.image"). */}}
{{- define "weft.image" -}}
{{- $root := index . 0 -}}
{{- $full := index . 2 -}}
{{- if $full -}}
{{- $full -}}
{{- else if $root.Values.image.registry -}}
{{- $variant := ternary "-silicon" "" (and $root.Values.operator.silicon (eq (index . 1) "weft-operator")) -}}
{{- printf "%s/%s:%s%s" $root.Values.image.registry (index . 1) (default $root.Chart.AppVersion $root.Values.image.tag) $variant -}}
{{- else -}}
{{- fail (printf "image.registry is not set: push Weft's images with 'make images push REGISTRY=registry.example.com/team' and install with --set image.registry=registry.example.com/team (or name this image in full with %s)" (index . 3)) -}}
{{- end -}}
{{- end -}}

{{- define "weft.redisUrl" -}}
{{- if .Values.redis.embedded.enabled -}}
{{- if .Values.redis.url -}}
{{- fail "redis.url is set while redis.embedded.enabled is true: set redis.embedded.enabled=false to use your own Redis, or leave redis.url empty" -}}
{{- end -}}
{{- if .Values.redis.urlSecretRef.name -}}
{{- fail "redis.urlSecretRef is set while redis.embedded.enabled is true: set redis.embedded.enabled=false to use your own Redis, or leave redis.urlSecretRef.name empty" -}}
{{- end -}}
{{- printf "redis://operator@%s-redis.%s:6379/0" (include "weft.fullname" .) .Release.Namespace -}}
{{- else if .Values.redis.urlSecretRef.name -}}
{{- if .Values.redis.url -}}
{{- fail "redis.url and redis.urlSecretRef are both set: remove one" -}}
{{- end -}}
{{- else -}}
{{- required "redis.url is required when redis.embedded.enabled is false: set it to redis://host:6379/0 of your Redis, or name a Secret in redis.urlSecretRef" .Values.redis.url -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the password of the operator's user of the embedded Redis, under the key password. */}}
{{- define "weft.redisSecret" -}}
{{- .Values.redis.embedded.existingSecret | default (printf "%s-redis-operator" (include "weft.fullname" .)) -}}
{{- end -}}

{{/* Where the pods of services reach the embedded Redis, as peers of their network policies. */}}
{{- define "weft.redisPeers" -}}
{{- toJson (list (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace)) "podSelector" (dict "matchLabels" (include "weft.selectorLabels" (list . "redis") | fromYaml)))) -}}
{{- end -}}

{{/* The ClusterRole that the operator binds in labelled namespaces, and the name of its bindings there. */}}
{{- define "weft.namespaceRole" -}}
{{- if .Values.operator.watchNamespaces -}}
{{- fail "operator.labelledNamespaces and operator.watchNamespaces are both set: remove one" -}}
{{- end -}}
{{- printf "%s-operator-namespace" (include "weft.clusterName" .) -}}
{{- end -}}

{{/* The namespaces of services, as a peer's namespaceSelector. */}}
{{- define "weft.serviceNamespaces" -}}
{{- if .Values.operator.labelledNamespaces -}}
matchLabels: {weft.dev/managed: "true"}
{{- else }}{{ with .Values.operator.watchNamespaces -}}
matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
{{- else -}}
{}
{{- end }}{{ end -}}
{{- end -}}

{{- define "weft.prometheusUrl" -}}
{{- if .Values.prometheus.embedded.enabled -}}
{{- if .Values.prometheus.url -}}
{{- fail "prometheus.url is set while prometheus.embedded.enabled is true: set prometheus.embedded.enabled=false to use your own Prometheus, or leave prometheus.url empty" -}}
{{- end -}}
{{- printf "http://%s-prometheus.%s:9090" (include "weft.fullname" .) .Release.Namespace -}}
{{- else -}}
{{- required "prometheus.url is required when prometheus.embedded.enabled is false: set it to http://host:9090 of your Prometheus" .Values.prometheus.url -}}
{{- end -}}
{{- end -}}

{{/* What a Prometheus of one's own asks of the operator beside its URL: sources of a projected volume; empty where nothing. */}}
{{- define "weft.prometheusAccess" -}}
{{- $asked := .Values.prometheus -}}
{{- if and $asked.embedded.enabled (or $asked.headers $asked.headersSecretRef.name $asked.matchers $asked.tokenSecretRef.name $asked.serviceAccountToken.enabled $asked.ca.configMap) -}}
{{- fail "prometheus.headers, headersSecretRef, matchers, tokenSecretRef, serviceAccountToken and ca are for a Prometheus of your own: set prometheus.embedded.enabled=false and prometheus.url, or remove them" -}}
{{- end -}}
{{- if and $asked.tokenSecretRef.name $asked.serviceAccountToken.enabled -}}
{{- fail "prometheus.tokenSecretRef and prometheus.serviceAccountToken are both set: remove one" -}}
{{- end -}}
{{- if and $asked.serviceAccountToken.enabled (hasPrefix "http://" $asked.url) -}}
{{- fail "prometheus.serviceAccountToken would be sent in plain text to prometheus.url, and it has the operator's rights: use https://" -}}
{{- end -}}
{{- with $asked.tokenSecretRef }}{{ if .name -}}
- secret:
    name: {{ .name | quote }}
    items:
      - {key: {{ .key | quote }}, path: token}
{{ end }}{{ end -}}
{{- with $asked.serviceAccountToken }}{{ if .enabled -}}
- serviceAccountToken:
    path: token
    expirationSeconds: {{ int64 .expirationSeconds }}
    {{- with .audience }}
    audience: {{ . | quote }}
    {{- end }}
{{ end }}{{ end -}}
{{- with $asked.ca }}{{ if .configMap -}}
- configMap:
    name: {{ .configMap | quote }}
    items:
      - {key: {{ .key | quote }}, path: ca.crt}
{{ end }}{{ end -}}
{{- end -}}

{{/* Not empty where PodMonitors are wanted: auto asks the cluster for their definition. */}}
{{- define "weft.podMonitors" -}}
{{- if eq (toString .Values.podMonitor.enabled) "auto" -}}
{{- if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor" }}yes{{ end -}}
{{- else if .Values.podMonitor.enabled -}}
yes
{{- end -}}
{{- end -}}

{{/* Who scrapes the pods of services, as peers of their network policies; empty where the operator's default is right. */}}
{{- define "weft.metricsFrom" -}}
{{- $peers := .Values.networkPolicy.metricsFrom -}}
{{- if .Values.prometheus.embedded.enabled -}}
{{- $own := dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace)) "podSelector" (dict "matchLabels" (include "weft.selectorLabels" (list . "prometheus") | fromYaml)) -}}
{{- $peers = prepend $peers $own -}}
{{- end -}}
{{- if $peers }}{{ toJson $peers }}{{ end -}}
{{- end -}}

{{/* Port of a URL of HTTP, for a network policy. Call with the URL. */}}
{{- define "weft.urlPort" -}}
{{- $url := urlParse . -}}
{{- if regexMatch ":[0-9]+$" $url.host -}}
{{- regexFind "[0-9]+$" $url.host -}}
{{- else if eq $url.scheme "https" -}}
443
{{- else -}}
80
{{- end -}}
{{- end -}}

{{/* The port of a Redis of one's own; its usual one where the URL names none or is in a Secret. */}}
{{- define "weft.redisPort" -}}
{{- $host := (urlParse .Values.redis.url).host -}}
{{- if regexMatch ":[0-9]+$" $host -}}
{{- regexFind "[0-9]+$" $host -}}
{{- else -}}
6379
{{- end -}}
{{- end -}}

{{/* Not empty on OpenShift, which assigns users and groups: auto asks the cluster for its security API. */}}
{{- define "weft.openshift" -}}
{{- if eq (toString .Values.platform.openshift) "auto" -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}yes{{ end -}}
{{- else if .Values.platform.openshift -}}
yes
{{- end -}}
{{- end -}}

{{/*
Pod Security "restricted". Weft's own images name a numeric user and need none here. Redis' image runs as root, Prometheus'
as a user without a number, and both write to volumes: where the platform assigns no user and group, they get 65532.
Call with (list . "own" .Values.operator.securityContext), or "foreign" for the images of others.
*/}}
{{- define "weft.podSecurityContext" -}}
{{- $context := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if and (eq (index . 1) "foreign") (not (include "weft.openshift" (index . 0))) -}}
{{- $context = merge $context (dict "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 "fsGroupChangePolicy" "OnRootMismatch") -}}
{{- end -}}
{{- /* Not by mergeOverwrite, which takes group 0 for nothing. */ -}}
{{- range $field, $value := index . 2 -}}
{{- $_ := set $context $field $value -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- define "weft.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* A lost node is left after 15 s instead of five minutes: sessions wait for these pods. Call with a list of tolerations. */}}
{{- define "weft.tolerations" -}}
- key: node.kubernetes.io/unreachable
  operator: Exists
  effect: NoExecute
  tolerationSeconds: 15
- key: node.kubernetes.io/not-ready
  operator: Exists
  effect: NoExecute
  tolerationSeconds: 15
{{- with . }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Nodes and priority of a component's pods: its own values, else those of .Values.scheduling. Call with (list . .Values.operator). */}}
{{- define "weft.placement" -}}
{{- $all := (index . 0).Values.scheduling -}}
{{- $own := index . 1 -}}
{{- with default $all.priorityClassName $own.priorityClassName -}}
priorityClassName: {{ . | quote }}
{{ end -}}
{{- with default $all.nodeSelector $own.nodeSelector -}}
nodeSelector: {{- toYaml . | nindent 2 }}
{{ end -}}
tolerations: {{- include "weft.tolerations" (default $all.tolerations $own.tolerations) | nindent 2 }}
{{- end -}}

{{- define "weft.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
