"""`python -m specinfer.cli` is `specinfer`."""

from specinfer.cli.entry import main

if __name__ == "__main__":
    main()
