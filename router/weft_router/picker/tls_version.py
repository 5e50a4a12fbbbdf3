"""The oldest version of TLS on a picker's gRPC port: set before gRPC is loaded, or it has no effect."""

import os
from typing import Final

from weft_router.config import TlsConfig

_CIPHERS: Final = "GRPC_SSL_CIPHER_SUITES"
"""The suites of TLS 1.2. gRPC for Python has no setting for versions, and reads this one as it is loaded."""
_NO_TLS_1_2: Final = "ECDHE-PSK-CHACHA20-POLY1305"
"""A suite that no handshake can choose, as the server has no shared key. TLS 1.3 has suites of its own."""


def limit_tls_version(tls: TlsConfig | None) -> None:
    """Have the gRPC server of this process, which is not loaded yet, speak no older TLS than is configured."""
    if tls is not None and tls.min_version == "1.3":
        os.environ[_CIPHERS] = _NO_TLS_1_2
