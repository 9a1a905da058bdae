{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{/*
Certificates of koordpy's servers. root: the chart's scope; part: section of the values, `webhook` or `tenants`.
Names and addresses under which the API server calls the server.
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
The generated certificate: data and annotations of the Secret, and the CA that API servers trust. The existing certificate
is reused while it is valid for these hosts. Without access to the cluster each rendering generates another one.
*/}}
{{- define "koordpy.ownCertificate" -}}
{{- $values := get .root.Values .part }}
{{- $name := printf "%s-%s" (include "koordpy.fullname" .root) .part }}
{{- $hosts := fromYaml (include "koordpy.certificateHosts" .) }}
{{- $listed := join "," (concat $hosts.names $hosts.addresses) }}
{{- if not (or $values.renderCertificate (lookup "v1" "Namespace" "" "default")) }}
{{- fail (printf "%s: without access to the cluster the certificate cannot be reused, and every rendering would generate another one: set %s.existingSecret or %s.certManager.enabled, render with --dry-run=server, or set %s.renderCertificate (docs/install.md, section 4)" .part .part .part .part) }}
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
{{- /* The old certificate stays valid until every replica has the new files. */}}
{{- $before := dig "data" "ca.crt" "" (default dict $known) | b64dec }}
{{- toYaml (dict "data" $data "annotations" $annotations "trusted" (b64enc (printf "%s%s" $before $ca.Cert))) }}
{{- end }}
{{- end -}}

{{/* Issuer and Certificate of cert-manager. component: value of their component label, empty for the webhook. */}}
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

{{/* clientConfig of the webhook. root: the chart's scope; path; trusted: CA certificates, empty: those of the system. */}}
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
