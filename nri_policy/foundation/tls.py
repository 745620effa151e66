"""TLS to servers of a cluster, whose certificates come from many tools."""

from __future__ import annotations

import ssl


def accept_what_kubectl_accepts(context: ssl.SSLContext) -> None:
    """Accept authorities without the extensions that RFC 5280 demands.

    Python refuses them since 3.13. Clusters have them, because Go's clients do not mind: those of
    `openssl req -x509` have no key usage, and those of older managed clusters no key identifier.
    """
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
