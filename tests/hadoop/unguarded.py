"""`sparklm` without the check that replicas fit into their containers, for seeing what becomes of those that do not."""

from unittest import mock

from sparklm.cli import main

if __name__ == "__main__":
    with mock.patch("sparklm.spark.placement.check_executor_memory"):
        main()
