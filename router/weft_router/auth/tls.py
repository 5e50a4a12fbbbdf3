"""TLS of the public port: a server context whose certificate is read again when its files change."""

import logging
import ssl
from pathlib import Path

from weft_router.config import ConfigError, TlsConfig

log = logging.getLogger(__name__)

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class ServerTls:
    """The certificate of this server; ``context`` stays the same object, so listeners keep it."""

    def __init__(self, config: TlsConfig) -> None:
        """Read certificate and key.

        Raises:
            ConfigError: a file cannot be read, or key and certificate do not belong together.
        """
        self._config = config
        self.context = _context(config)
        self._stamp = self._read_stamp()

    def reload(self) -> bool:
        """Read the files again if they changed; tell whether the certificate is a new one. Broken files keep the old.

        Connections that are open keep theirs.
        """
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return False
            _context(self._config)  # both files are tried first: a half-loaded pair would refuse every client
            self.context.load_cert_chain(self._config.cert_file, self._config.key_file)
        except (OSError, ConfigError) as error:
            log.warning("certificate_unreadable", extra={"error": str(error)})
            return False
        self._stamp = stamp
        log.info("certificate_read")
        return True

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...]:
        try:
            stats = [Path(name).stat() for name in (self._config.cert_file, self._config.key_file)]
        except OSError as error:
            raise ConfigError(f"tls: {error.filename}: cannot be read ({error.strerror}); check the path") from error
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def _context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
        if config.client_ca_file:
            context.load_verify_locations(cafile=config.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except ssl.SSLError as error:
        raise ConfigError(
            f"tls: certFile, keyFile and clientCaFile must be PEM, the key unencrypted and the certificate's own "
            f"({error.reason or 'not PEM'})"
        ) from error
    except OSError as error:
        raise ConfigError(f"tls: a file cannot be read ({error.strerror}); check certFile and keyFile") from error
    return context


def _no_password() -> str:
    raise ConfigError("tls.keyFile: the key is encrypted; give one without a password")
