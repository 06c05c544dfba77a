"""What the tests of all backends use."""

from tests.commands.conftest import command, running  # noqa: F401
