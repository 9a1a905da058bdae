# SPDX-License-Identifier: Apache-2.0
"""Verifies the API server's certificate by the rules of Go clients (kubectl), and says why a certificate is refused.

Python's ssl module refuses some certificates that Go accepts, and states the cause only as OpenSSL's error number.
"""

import ssl
import time

# OpenSSL's numbers of certificate errors (X509_V_ERR_*), by cause
EXPIRED, NOT_YET_VALID = (10,), (9,)
OF_ANOTHER_HOST = (62, 64)
UNKNOWN_AUTHORITY = (2, 7, 18, 19, 20, 21, 24, 30)


def trusting(*, ca_file: str | None = None, ca_text: str | None = None) -> ssl.SSLContext:
    """Returns a TLS context for clients. ca_file, ca_text: trusted authorities; without both, those of the system.

    It accepts the same certificates as Go, with any Python version. Raises OSError, ssl.SSLError.
    """
    context = ssl.create_default_context(cafile=ca_file, cadata=ca_text)
    # VERIFY_X509_STRICT, a default from Python 3.13 on, refuses certificates without key usage or key identifiers, such
    # as those of EKS
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # like Go, accept an authority that is not a root certificate
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def refusal(error: ssl.SSLCertVerificationError, context: ssl.SSLContext | None, host: str, source: str) -> str:
    """Returns why a host's certificate is refused. source: where the authorities were read from."""
    authority = f"the certificate authority of {source}" if source else "the certificate authority given"
    code = error.verify_code
    if code in EXPIRED:
        why = _expired_authority(context, authority) or "it has expired"
    elif code in NOT_YET_VALID:
        why = "it is not valid yet (is the clock right?)"
    elif code in OF_ANOTHER_HOST:
        why = "it is for other host names; if one of them is expected, set tls-server-name"
    elif code in UNKNOWN_AUTHORITY:
        why = f"{authority} has not signed it"
    else:
        why = "it is not valid"
    return f"the certificate of {host} is refused: {why} ({error.verify_message})"


def _expired_authority(context: ssl.SSLContext | None, authority: str) -> str:
    """Returns a message if all trusted authorities have expired, because OpenSSL's number does not say that; else an
    empty text."""
    ends = [str(one["notAfter"]) for one in context.get_ca_certs() if "notAfter" in one] if context is not None else []
    over = [end for end in ends if ssl.cert_time_to_seconds(end) < time.time()]
    return f"{authority} has expired: it was valid until {over[0]}" if ends and len(over) == len(ends) else ""
