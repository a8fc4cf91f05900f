"""What errors of stores mean, and how long they are waited for."""

from __future__ import annotations

import errno

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from sparklm.errors import StoreAwayError, UserError
from sparklm.storage import Folder, be_patient, current_patience, is_away, keep_trying, not_waiting, patience, retrying
from sparklm.storage.trouble import explain

STACK = r"\n\tat org.apache.hadoop.ipc.Server.call(Server.java:1)\n"


def of_java(name: str, message: str) -> RuntimeError:
    """As hdfs-native raises what a name node said."""
    return RuntimeError(f'RPCError("{name}", "{message}{STACK}")')


def answered(code: str, status: int, message: str = "words") -> OSError:
    """As s3fs raises what a server answered."""
    error = OSError(errno.EIO, message)
    error.__cause__ = ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject"
    )
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (of_java("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "no"), "the name node is in safe mode"),
        (of_java("org.apache.hadoop.ipc.RetriableException", "later"), "the name node is not ready (later)"),
        (of_java("java.io.IOException", "to 0 of the 1 minReplication nodes"), "no data node takes it"),
        (RuntimeError('DataTransferError("broken")'), "a data node does not answer"),
        (OSError("Connection refused (os error 111)"), "connection refused"),
        (OSError("RPC listener disconnected"), "the name node has ended the connection"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "connection reset by peer"),
        (TimeoutError("the read timed out"), "the read timed out"),
        (EndpointConnectionError(endpoint_url="http://x"), 'Could not connect to the endpoint URL: "http://x"'),
        (answered("SlowDown", 503, "Reduce"), "SlowDown Reduce"),
        (answered("InternalError", 500), "InternalError words"),
        (answered("TooMany", 429), "TooMany words"),
    ],
)
def test_some_troubles_pass(error: Exception, text: str) -> None:
    trouble = explain(error)
    assert trouble is not None
    assert (trouble.text, trouble.passes) == (text, True)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (of_java("org.apache.hadoop.security.AccessControlException", "user=me"), "no permission (user=me)"),
        (of_java("org.apache.hadoop.hdfs.protocol.NSQuotaExceededException", "q"), "the quota is exceeded (q)"),
        (of_java("org.apache.hadoop.fs.ParentNotDirectoryException", "/a (is a file)"), "/a (is a file)"),
        (of_java("org.apache.hadoop.SomeException", "odd"), "SomeException: odd"),
        (PermissionError("no"), "no permission (no)"),
        (NoCredentialsError(), "Unable to locate credentials; see AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL"),
        (ValueError("Invalid endpoint: x"), "Invalid endpoint: x; see AWS_ENDPOINT_URL"),
        (answered("NoSuchBucket", 404), "no such bucket; make it, or choose another place"),
        (answered("SignatureDoesNotMatch", 403), "no permission (SignatureDoesNotMatch words); see AWS_ACCESS_KEY_ID"),
        (answered("InvalidRequest", 400), "the server refuses it (InvalidRequest words)"),
        (NotADirectoryError("a"), "a; choose another place"),
    ],
)
def test_others_do_not(error: Exception, text: str) -> None:
    trouble = explain(error)
    assert trouble is not None
    assert (trouble.text, trouble.passes) == (text, False)


def test_what_is_no_trouble_of_a_store_is_left_alone() -> None:
    for error in (KeyError("a"), RuntimeError("a bug"), ValueError("a")):
        assert explain(error) is None
        with pytest.raises(type(error)):
            keep_trying("memory://a", lambda error=error: raise_(error))


def raise_(error: Exception) -> None:
    raise error


class Clock:
    def __init__(self) -> None:
        self.now, self.pauses = 0.0, []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retrying, "time", clock)
    monkeypatch.setattr(retrying._State, "known", set())
    monkeypatch.setattr(retrying._State, "away", {})
    monkeypatch.setattr(retrying._State, "trusts", False)
    return clock


def test_a_store_that_was_there_is_waited_for_with_growing_pauses(clock: Clock) -> None:
    told: list[str] = []
    back_at = 100.0

    def ask() -> str:
        if 0 < clock.now < back_at:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "x")
        return "answer"

    with patience(5, told.append):
        assert keep_trying("s3://a/b", ask) == "answer"
        clock.now = 1.0
        assert keep_trying("s3://a/b", ask) == "answer"
    assert told[0] == "s3://a: connection refused; trying again for up to 5 min"
    assert told[1].startswith("s3://a answers again, after 1 min")
    assert len(told) == 2
    assert clock.pauses[0] < 0.5
    assert 5 <= max(clock.pauses) <= 10


@pytest.mark.parametrize(("is_known", "seconds", "remedy"), [(True, 300, "goes on from it"), (False, 20, "right?")])
def test_it_is_given_up_in_time_and_a_stranger_sooner(
    clock: Clock, is_known: bool, seconds: float, remedy: str
) -> None:
    if is_known:
        keep_trying("s3://a/b", lambda: None)
    with pytest.raises(StoreAwayError, match=remedy), patience(5, [].append):
        keep_trying("s3://a/b", lambda: raise_(TimeoutError("late")))
    assert clock.now == pytest.approx(seconds)


def test_what_only_informs_does_not_wait(clock: Clock) -> None:
    with pytest.raises(StoreAwayError, match="does not answer: late"), patience(5, [].append), not_waiting():
        keep_trying("s3://a/b", lambda: raise_(TimeoutError("late")))
    assert (clock.pauses, is_away("s3a://a/other")) == ([], True)
    with pytest.raises(FileNotFoundError):
        keep_trying("s3://a/b", lambda: raise_(FileNotFoundError("x\n\tat java")))
    assert not is_away("s3://a/b")


def test_a_worker_is_as_patient_as_its_driver(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying._State, "seconds", 1.0)
    be_patient(60.0)
    assert current_patience() == 60.0
    with pytest.raises(StoreAwayError):
        keep_trying("s3://new/b", lambda: raise_(TimeoutError("late")))
    assert clock.now == pytest.approx(60.0)


def test_errors_that_stay_are_the_users_at_once(clock: Clock) -> None:
    with pytest.raises(UserError, match=r"^s3://\(hidden\)@a/b: no permission \(x\)$"):
        keep_trying("s3://me:word@a/b", lambda: raise_(PermissionError("x")))
    assert clock.pauses == []


@pytest.mark.parametrize("protocol", ["webhdfs", "ftp", "sftp", "https"])
def test_nothing_is_written_where_half_a_file_could_be_seen(protocol: str) -> None:
    with pytest.raises(UserError, match="files cannot be written as a whole there"):
        Folder(f"{protocol}://host/a").write_bytes("b", b"")
