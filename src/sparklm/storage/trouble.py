"""What stores say when something is wrong, in a line: and whether it passes by itself.

Stores speak in many ways: errors of the system, of botocore and aiohttp (S3), and of Java, with its stack (HDFS).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from sparklm.redaction import hide_secrets

# By the names of classes, so that nobody's package need be there.
_PASSING_CLASSES = {
    *("EndpointConnectionError", "ConnectionClosedError", "ConnectTimeoutError", "ReadTimeoutError", "HTTPClientError"),
    *("ResponseStreamingError", "IncompleteReadError", "IncompleteRead", "ResponseParserError", "FSTimeoutError"),
    *("ClientPayloadError", "ClientConnectionError", "ServerTimeoutError", "ConnectionError", "TimeoutError"),
}
_WRONG_SETTINGS = {
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"),
    *("ProfileNotFound", "NoRegionError", "InvalidRegionError", "ParamValidationError", "UnknownServiceError"),
}
_PASSING_NUMBERS = {
    *(errno.EBUSY, errno.EREMOTEIO, errno.EPIPE, errno.ETIMEDOUT, errno.EAGAIN, errno.ENETDOWN, errno.ENETUNREACH),
    *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED),
}
_LEAST_SERVER_FAULT, _TOO_MANY_REQUESTS = 500, 429  # of HTTP
# How hdfs-native reports what the name node said: the class of an exception of Java, and its message with the stack.
_OF_JAVA = re.compile(r'(?:Fatal)?RPCError\("([\w.$]+)", "(.*)', re.DOTALL)
_OF_HDFS = {  # what the text of its own errors holds: what that means, and whether it passes
    "No fs.defaultFS": ("hdfs:/// needs fs.defaultFS in core-site.xml; set HADOOP_CONF_DIR, or name host:port", False),
    "URL must contain a host": (
        "hdfs:/// needs an fs.defaultFS of HDFS; set HADOOP_CONF_DIR, or name host:port",
        False,
    ),
    "No NameNode hosts found": (
        "no port, and no such name service in hdfs-site.xml; set HADOOP_CONF_DIR, or name host:port",
        False,
    ),
    "No viewfs fallback": ("no mount table for it in core-site.xml; set HADOOP_CONF_DIR", False),
    "Cannot rename across": ("its mounts lie on different name nodes; choose a folder inside one of them", False),
    "SASLError": ("the name node does not accept this user; for Kerberos, run kinit", False),
    "GSSAPIError": ("the name node does not accept this user; for Kerberos, run kinit", False),
    "InvalidArgument": ("this address cannot be used", False),
    "UrlParseError": ("this address cannot be used", False),
    "failed to lookup address": ("no such host, nor a name service in HADOOP_CONF_DIR", True),
    "DataTransferError": ("a data node does not answer", True),
    "BlocksNotFound": ("no data node has all of it now", True),
    "All nodes failed": ("no data node takes it", True),
    "OperationFailed": ("the name node did not do it", True),
    "InternalError": ("the name node or a data node failed", True),
    "ChecksumError": ("a data node sent damaged data", True),
    "InvalidRPCResponse": ("the name node's answer is broken", True),
    "RPC listener disconnected": ("the name node has ended the connection", True),
    "os error": ("", True),  # its own words follow
    "waiting for ack": ("a data node does not answer", True),
    "onnect": ("", True),
    "imed out": ("", True),
    "end of file": ("the connection was ended", True),
    "early eof": ("the connection was ended", True),
}


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a store."""

    text: str
    passes: bool  # by itself, perhaps


def explain(error: BaseException) -> Trouble | None:
    """What an error of a store means; None where it is no such error."""
    trouble = _of_hdfs(error) or _of_classes(error) or _of_system(error)
    return None if trouble is None else Trouble(hide_secrets(trouble.text), trouble.passes)


def _of_hdfs(error: BaseException) -> Trouble | None:
    text = str(error)
    java = _OF_JAVA.match(text)
    if java is not None:
        return _of_java(java[1].rpartition(".")[2], _first_line(java[2].replace("\\n", "\n")).removesuffix('")'))
    is_its_own = type(error) is RuntimeError or (type(error) is OSError and error.errno is None)
    if not is_its_own:
        return None
    for sign, (meaning, passes) in _OF_HDFS.items():
        if sign in text:
            return Trouble(meaning or _system_words(_first_line(text)), passes)
    return None


def _of_java(name: str, message: str) -> Trouble:
    """What an exception of the name node means."""
    if name == "SafeModeException":
        return Trouble("the name node is in safe mode", passes=True)
    if name == "AccessControlException":
        return Trouble(f"no permission ({message})", passes=False)
    if "QuotaExceeded" in name:
        return Trouble(f"the quota is exceeded ({message})", passes=False)
    if name in ("ParentNotDirectoryException", "FileAlreadyExistsException"):
        return Trouble(message, passes=False)
    if name in ("StandbyException", "RetriableException", "ServerTooBusyException"):
        return Trouble(f"the name node is not ready ({message})", passes=True)
    if "minReplication" in message or "NotReplicatedYet" in name:
        return Trouble("no data node takes it", passes=True)
    if "LeaseExpired" in name or "UnregisteredNode" in name or name == "IOException":
        return Trouble(message, passes=True)
    return Trouble(f"{name}: {message}", passes=False)


def _of_classes(error: BaseException) -> Trouble | None:
    for each in _chain(error):
        names = {kind.__name__ for kind in type(each).__mro__}
        response = getattr(each, "response", None)
        if isinstance(response, dict) and "Error" in response:
            return _of_answer(response)
        if names & _WRONG_SETTINGS:
            return Trouble(f"{_first_line(str(each))}; see AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL", passes=False)
        if names & _PASSING_CLASSES:
            return Trouble(_of_connection(each), passes=True)
    if isinstance(error, ValueError) and "endpoint" in str(error).lower():
        return Trouble(f"{_first_line(str(error))}; see AWS_ENDPOINT_URL", passes=False)
    return None


def _of_answer(response: dict[str, dict[str, object]]) -> Trouble:
    """What an S3 server answered."""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code, message = (str(response["Error"].get(name, "")) for name in ("Code", "Message"))
    is_late = code in ("RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded")
    is_fault = isinstance(status, int) and (status >= _LEAST_SERVER_FAULT or status == _TOO_MANY_REQUESTS)
    if is_late or is_fault:
        return Trouble(f"{code or status} {message}".strip(), passes=True)
    if code == "NoSuchBucket":
        return Trouble("no such bucket; make it, or choose another place", passes=False)
    if status == 403:
        return Trouble(f"no permission ({code} {message}); see AWS_ACCESS_KEY_ID", passes=False)
    return Trouble(f"the server refuses it ({code} {message})", passes=False)


def _of_connection(error: BaseException) -> str:
    for each in _chain(error):
        if isinstance(each, OSError) and each.errno in _PASSING_NUMBERS:
            return os.strerror(each.errno).lower()
    return _first_line(str(error)) or type(error).__name__


def _system_words(text: str) -> str:
    """`Connection refused (os error 111)` as the system has it."""
    number = re.search(r"os error (\d+)", text)
    return os.strerror(int(number[1])).lower() if number is not None else text


def _of_system(error: BaseException) -> Trouble | None:
    if isinstance(error, PermissionError):
        return Trouble(f"no permission ({_first_line(str(error))})", passes=False)
    if isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError):
        return Trouble(f"{_first_line(str(error))}; choose another place", passes=False)
    if isinstance(error, ConnectionError | TimeoutError) or getattr(error, "errno", None) in _PASSING_NUMBERS:
        return Trouble(_of_connection(error), passes=True)
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that caused it."""
    seen = 0
    while error is not None and seen < 10:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1


def _first_line(text: str) -> str:
    """The first line that says something: one that ends in a colon only announces the next."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return next((line for line in lines if line and not line.endswith(":")), "")
