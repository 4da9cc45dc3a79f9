# One volunteer peer. Identity, data and caches lie in the volume /data; nothing runs as root.
#
#   bash peers/build-image.sh                        CPU; needs buildah, no daemon
#   bash peers/build-image.sh --variant cuda         the CUDA build of torch from PyPI
#   docker build --build-arg VARIANT=cuda -t adloco-peer:cuda .
#
#   docker run -v adloco:/data adloco-peer:cpu join --initial-peers 'adloco://...' --workdir /data
#
# BASE is any glibc system with Python 3.11 or newer as `python3`, and venv.

ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG VARIANT=cpu
# PyTorch's own index of CPU builds, beside pip's default: of one version pip takes its `+cpu`. Empty: pip's default alone.
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/adloco /opt/build
COPY constraints.txt /src/
RUN case "$VARIANT" in \
      cpu) index=${CPU_INDEX:+--extra-index-url $CPU_INDEX} ;; \
      cuda) index= ;; \
      *) echo "VARIANT $VARIANT: cpu or cuda is accepted" >&2; exit 2 ;; \
    esac \
 && /opt/adloco/bin/pip install --quiet -c /src/constraints.txt $index torch
COPY pyproject.toml README.md LICENSE /src/
COPY configs /src/configs
COPY adloco_p2p /src/adloco_p2p
# The wheel is what gets installed: nothing of the source tree reaches the image below. The extras are small, and a run or a
# machine's settings may need them; pip is not in the image.
RUN /opt/build/bin/pip wheel --quiet --no-deps --wheel-dir /wheel /src \
 && /opt/adloco/bin/pip install --quiet -c /src/constraints.txt "$(echo /wheel/*.whl)[finetune,gpu,tensorboard]" \
 && /opt/adloco/bin/pip uninstall --quiet --yes pip setuptools \
 && find /opt/adloco -type d -path '*/site-packages/*' '(' -name tests -o -name test ')' -prune -exec rm -r '{}' +

FROM ${BASE}
LABEL org.opencontainers.image.title="adloco-peer" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/adloco /opt/adloco
RUN useradd --uid 10001 --no-create-home --home-dir /data adloco && install -d -o adloco -g adloco -m 700 /data
ENV PATH=/opt/adloco/bin:$PATH HOME=/data HF_HOME=/data/cache PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 31337/tcp
# The node ends its round, saves and leaves.
STOPSIGNAL SIGTERM
# A node or a bootstrap, from its start on; else the first peer of a swarm; else the page of a dashboard, at its usual port.
HEALTHCHECK --interval=60s --timeout=30s --start-period=10m --retries=3 CMD adloco-peer status --workdir /data > /dev/null \
 || adloco-peer status --workdir /data/peer-0 > /dev/null \
 || python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=5)"
ENTRYPOINT ["adloco-peer"]
CMD ["--help"]
