"""TLS: the server has a certificate, and clients may need one."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from kit.certificates import Authority
from kit.served import served
from tidelog.errors import LocationError, UsageError
from tidelog.http.client import HttpKeyedLog
from tidelog.server.serving import ServerTls


def trusting(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


def test_a_certificate_is_asked_for_from_both_ends(tmp_path: Path) -> None:
    """The server refuses a client without a certificate, or with that of another authority."""
    authority, strangers = Authority.make(tmp_path), Authority.make(tmp_path, "strangers")
    certificate, key = authority.issue("server")
    ours = tmp_path / "authority.pem"
    tls = ServerTls(certificate=certificate, key=key, client_ca=ours)
    known, unknown, alone = (trusting(ours) for _ in range(3))
    known.load_cert_chain(*authority.issue("client"))
    unknown.load_cert_chain(*strangers.issue("stranger"))
    mistrusting = trusting(tmp_path / "strangers.pem")

    with served(tls=tls) as server:
        assert server.url.startswith("https://")
        with HttpKeyedLog(server.url, tls=known) as log:
            assert log.append([(b"a", b"1")]) == 1
            assert log.count(b"a") == 1
        for refused in (unknown, alone, mistrusting):
            with HttpKeyedLog(server.url, tls=refused) as log, pytest.raises(LocationError):
                log.count(b"a")
        plain = server.url.replace("https", "http")
        with HttpKeyedLog(plain) as log, pytest.raises(LocationError):
            log.count(b"a")


def test_files_that_are_no_certificates_are_refused_before(tmp_path: Path) -> None:
    """The check refuses bad certificate files, and the key of another certificate."""
    authority = Authority.make(tmp_path)
    certificate, key = authority.issue("server")
    _, other = authority.issue("other")
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nonsense")
    ServerTls(certificate=certificate, key=key).check()
    for tls in (
        ServerTls(certificate=certificate, key=other),
        ServerTls(certificate=nonsense, key=key),
        ServerTls(certificate=certificate, key=tmp_path / "nix"),
        ServerTls(certificate=certificate, key=key, client_ca=nonsense),
    ):
        with pytest.raises(UsageError, match="files for TLS"):
            tls.check()
