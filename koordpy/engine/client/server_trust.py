"""Whom we take for the API server: certificates are judged as clients in Go judge them, and a refusal says why."""

import ssl
import time

EXPIRED, NOT_YET_VALID = (10,), (9,)
OF_ANOTHER_HOST = (62, 64)
UNKNOWN_AUTHORITY = (2, 7, 18, 19, 20, 21, 24, 30)
"""OpenSSL's numbers of what is wrong with a certificate (X509_V_ERR_*)."""


def trusting(*, ca_file: str | None = None, ca_text: str | None = None) -> ssl.SSLContext:
    """A client's context with the authorities given, else those of the system. It takes the certificates that Go takes,
    whichever Python this is. Raises OSError, ssl.SSLError."""
    context = ssl.create_default_context(cafile=ca_file, cadata=ca_text)
    # set by default from Python 3.13 on: certificates without key usage or key identifiers, EKS has them, are refused
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # the same the other way round: an authority that is no root is one all the same
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def refusal(error: ssl.SSLCertVerificationError, context: ssl.SSLContext | None, host: str, source: str) -> str:
    """Why the certificate of a host is refused. source: where the authorities were read."""
    authority = f"the certificate authority of {source}" if source else "the certificate authority given"
    code = error.verify_code
    if code in EXPIRED:
        why = _expired_authority(context, authority) or "it has expired"
    elif code in NOT_YET_VALID:
        why = "it is not valid yet; is the clock right?"
    elif code in OF_ANOTHER_HOST:
        why = "it is for other names; tls-server-name may name the one to expect"
    elif code in UNKNOWN_AUTHORITY:
        why = f"{authority} has not signed it"
    else:
        why = "it does not hold"
    return f"the certificate of {host} is refused: {why} ({error.verify_message})"


def _expired_authority(context: ssl.SSLContext | None, authority: str) -> str:
    """Says so where an authority is what has expired; OpenSSL's number does not."""
    ends = [str(one["notAfter"]) for one in context.get_ca_certs() if "notAfter" in one] if context is not None else []
    over = [end for end in ends if ssl.cert_time_to_seconds(end) < time.time()]
    return f"{authority} has expired: it was valid until {over[0]}" if ends and len(over) == len(ends) else ""
