# Image of `translate-trt serve` for CPUs, with the native runtime and the compiled kernels:
#
#   docker build -f examples/deploy/cpu.Dockerfile -t translate-trt:cpu .
#
# The models are not in the image: mount their directory at /models (docs/deploy.md).
ARG PYTHON=3.13-slim-trixie

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

FROM python:${PYTHON}
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    pip install --no-cache-dir --constraint /constraints.txt "$(echo /wheels/*.whl)[cpu,serve]" \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp translate
# Modules were compiled by pip, and nothing is written at run time.
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# By number, so that Kubernetes can check that it is not root.
USER 10001:10001
VOLUME /models
WORKDIR /models
EXPOSE 5000
# A translation, on the server's own port; urllib would use a proxy of the environment.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 5000, timeout=8); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"]
# The server is the first process and receives SIGTERM, on which it drains.
ENTRYPOINT ["translate-trt"]
CMD ["serve", "--host", "0.0.0.0", "--port", "5000", "/models/bundle"]
