"""`python -m sparklm` is the command `sparklm`."""

from sparklm.cli import main

if __name__ == "__main__":
    main()
