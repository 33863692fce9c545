# Serve a model: docker build -t vitrail . && docker run -p 8000:8000 -v "$PWD/runs/photos:/model:ro" vitrail
# --build-arg TORCH_INDEX=… takes PyTorch's CPU build from the index that its install page names: 200 MB instead of gigabytes.
FROM python:3.11-slim AS build
ARG TORCH_INDEX=
WORKDIR /src
COPY pyproject.toml README.md LICENSE NOTICE constraints.txt ./
COPY src src
RUN python -m venv /opt/vitrail \
 && /opt/vitrail/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0 \
 && /opt/vitrail/bin/pip install --no-cache-dir --constraint constraints.txt '.[serve,onnx]'

FROM python:3.11-slim
COPY --from=build /opt/vitrail /opt/vitrail
RUN useradd --create-home --uid 10001 vitrail
USER 10001
ENV PATH=/opt/vitrail/bin:$PATH
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["vitrail"]
CMD ["serve", "/model", "--host", "0.0.0.0"]
