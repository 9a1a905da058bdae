{{/*
Certificates of our servers. root: the chart's scope; part: `webhook` or `tenants`, whose section of the values is meant.
Under what the API server calls the server: names and addresses.
*/}}
{{- define "koordpy.certificateHosts" -}}
{{- $service := printf "%s-%s.%s" (include "koordpy.fullname" .root) .part (include "koordpy.namespace" .root) }}
{{- $hosts := dict "names" (list (printf "%s.svc" $service) $service) "addresses" list }}
{{- with (get .root.Values .part).url }}
{{- $host := regexReplaceAll ":[0-9]+$" (trimPrefix "https://" .) "" | trimPrefix "[" | trimSuffix "]" }}
{{- $kind := ternary "addresses" "names" (regexMatch "^[0-9.]+$|:" $host) }}
{{- $_ := set $hosts $kind (append (get $hosts $kind) $host) }}
{{- end }}
{{- toYaml $hosts }}
{{- end -}}

{{/*
The chart's own certificate: data and annotations of the Secret, and the authorities that API servers trust. The one of
the cluster is kept while it holds for these hosts; where there is no cluster to ask, each rendering makes another one.
*/}}
{{- define "koordpy.ownCertificate" -}}
{{- $values := get .root.Values .part }}
{{- $name := printf "%s-%s" (include "koordpy.fullname" .root) .part }}
{{- $hosts := fromYaml (include "koordpy.certificateHosts" .) }}
{{- $listed := join "," (concat $hosts.names $hosts.addresses) }}
{{- if not (or $values.renderCertificate (lookup "v1" "Namespace" "" "default")) }}
{{- fail (printf "%s: there is no cluster to keep a certificate in, and every rendering would make another one: set %s.existingSecret or %s.certManager.enabled, render with --dry-run=server, or set %s.renderCertificate (docs/install.md, section 4)" .part .part .part .part) }}
{{- end }}
{{- $known := lookup "v1" "Secret" (include "koordpy.namespace" .root) $name }}
{{- $notes := dig "metadata" "annotations" dict (default dict $known) }}
{{- $renew := int64 (get $notes "koordpy.io/renew-after" | default "0") }}
{{- if and (eq (get $notes "koordpy.io/hosts") $listed) (lt (int64 (now | unixEpoch)) $renew) }}
{{- toYaml (dict "data" (pick $known.data "ca.crt" "tls.crt" "tls.key") "annotations" (pick $notes "koordpy.io/renew-after" "koordpy.io/hosts") "trusted" (index $known.data "ca.crt")) }}
{{- else }}
{{- $days := int $values.certificateDays }}
{{- $ca := genCA (printf "koordpy-%s-ca" .part) $days }}
{{- $pair := genSignedCert (printf "koordpy-%s" .part) $hosts.addresses $hosts.names $days $ca }}
{{- $data := dict "ca.crt" (b64enc $ca.Cert) "tls.crt" (b64enc $pair.Cert) "tls.key" (b64enc $pair.Key) }}
{{- $until := toString (add (int64 (now | unixEpoch)) (mul (int64 $days) 57600)) }}
{{- $annotations := dict "koordpy.io/renew-after" $until "koordpy.io/hosts" $listed }}
{{- /* Until every replica has the new files, the old ones are still good. */}}
{{- $before := dig "data" "ca.crt" "" (default dict $known) | b64dec }}
{{- toYaml (dict "data" $data "annotations" $annotations "trusted" (b64enc (printf "%s%s" $before $ca.Cert))) }}
{{- end }}
{{- end -}}

{{/* Issuer and Certificate of cert-manager. component: of their labels, none for the webhook's. */}}
{{- define "koordpy.managedCertificate" -}}
{{- $values := get .root.Values .part }}
{{- $suffix := printf "-%s" .part }}
{{- $hosts := fromYaml (include "koordpy.certificateHosts" .) }}
{{- if not $values.certManager.issuerRef }}
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  {{- include "koordpy.metadata" (dict "root" .root "suffix" $suffix "component" .component) | nindent 2 }}
spec:
  selfSigned: {}
---
{{- end }}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  {{- include "koordpy.metadata" (dict "root" .root "suffix" $suffix "component" .component) | nindent 2 }}
spec:
  secretName: {{ include "koordpy.fullname" .root }}{{ $suffix }}
  duration: {{ mul (int $values.certificateDays) 24 }}h
  dnsNames:
    {{- toYaml $hosts.names | nindent 4 }}
  {{- with $hosts.addresses }}
  ipAddresses:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  issuerRef:
    {{- toYaml (default (dict "name" (printf "%s%s" (include "koordpy.fullname" .root) $suffix)) $values.certManager.issuerRef) | nindent 4 }}
{{- end -}}

{{/* How the API server reaches the webhook. root: the chart's scope; path; trusted: authorities, empty: the system's. */}}
{{- define "koordpy.webhookClient" -}}
{{- with .trusted }}
caBundle: {{ . }}
{{- end }}
{{- with .root.Values.webhook.url }}
url: {{ . }}{{ $.path }}
{{- else }}
service:
  name: {{ include "koordpy.fullname" .root }}-webhook
  namespace: {{ include "koordpy.namespace" .root }}
  path: {{ .path }}
  port: 443
{{- end }}
{{- end -}}
