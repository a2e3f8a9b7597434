"""`python -m commands`: the same as the `gatebook` script."""

from commands.entry import main

main()
