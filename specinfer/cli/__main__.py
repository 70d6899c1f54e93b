"""`python -m specinfer.cli` is `specinfer`."""

from specinfer.cli.main import main

if __name__ == "__main__":
    main()
