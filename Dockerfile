# tracebed in a container, for simulations, comparisons, and replays on emulated nodes:
#
#     docker build -t tracebed .
#     docker run --rm -v "$PWD:/work" -u "$(id -u):$(id -g)" tracebed demo
#
# FROM is any image with Python 3.11 or newer, its module venv, and gcc, which compiles the engine; without gcc,
# simulations take longer. The other arguments are those of pip, for a mirror or for a folder of wheels in the context.
ARG FROM=python:3.12
FROM ${FROM} AS build
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
COPY . /src
WORKDIR /src
RUN python3 -m venv /opt/tracebed && /opt/tracebed/bin/pip install --no-cache-dir .

FROM ${FROM}
COPY --from=build /opt/tracebed /opt/tracebed
ENV PATH=/opt/tracebed/bin:$PATH HOME=/tmp
WORKDIR /work
USER 10001:10001
ENTRYPOINT ["tracebed"]
