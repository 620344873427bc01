# Image of NVIDIA's Triton Inference Server with the runtime in the Python of its Python backend:
#
#   docker build -f examples/deploy/triton.Dockerfile -t translate-trt:triton .
#
# The model repository that `translate-trt triton` creates is not in the image: mount it at /repo
# (docs/deploy.md). EXTRA is the pip extra of the target that the repository has.
ARG PYTHON=3.12-slim-bookworm
ARG TRITON=25.06-py3

# An older C library than that of Triton's image, for which the libraries are built.
FROM python:${PYTHON} AS wheel
# The compiler only stays in this stage, and any version builds the same libraries.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# A failed build of the libraries fails here, rather than making a slower image.
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && test ! -e /wheels/*-none-any.whl

FROM nvcr.io/nvidia/tritonserver:${TRITON}
ARG EXTRA=cpu
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --break-system-packages "$(echo /wheels/*.whl)[${EXTRA}]" \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp translate
ENV PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /repo
# HTTP, gRPC, metrics.
EXPOSE 8000 8001 8002
# A translation: Triton's own health endpoints show only that processes run.
HEALTHCHECK --interval=30s --timeout=10s --start-period=300s --retries=3 \
    CMD ["curl", "-sf", "--noproxy", "*", "--max-time", "8", "http://127.0.0.1:8000/v2/models/translation/infer", "-d", "{\"inputs\":[{\"name\":\"TEXT\",\"datatype\":\"BYTES\",\"shape\":[1,1],\"data\":[\"A dog.\"]}]}"]
CMD ["tritonserver", "--model-repository=/repo", "--exit-timeout-secs=40"]
