"""Options of requests, HTTP and TLS, the same in `serve` and `up`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from specinfer.options.model_options import Option, Positive


@dataclass
class TlsOptions:
    """Files of a server's TLS."""

    group: ClassVar[str] = "Process"

    tls_certificate: Annotated[
        str, Option("PEM file of the server's certificate; enables TLS on the port.")
    ] = ""
    tls_key: Annotated[str, Option("PEM file of the certificate's private key, without password.")] = ""
    tls_client_ca: Annotated[
        str, Option("PEM file of the clients' authorities; clients then need a certificate (mutual TLS).")
    ] = ""


@dataclass
class GatewayOptions:
    """Options of requests."""

    group: ClassVar[str] = "Requests"

    chat_template: Annotated[str, Option("File of a chat template (Jinja); empty: the model's template.")] = (
        ""
    )
    parse_special_tokens: Annotated[
        bool,
        Option("Parse names of special tokens in messages, results and functions as special tokens."),
    ] = False
    generation_config: Annotated[
        Literal["model", "none"],
        Option(
            "Sampling parameters that a request leaves unset: model, as in generation_config.json or the GGUF file, "
            "or none, those of OpenAI's API.",
            choices=("model", "none"),
        ),
    ] = "model"
    max_batch: Annotated[Positive, Option("Maximum requests decoded at once.")] = 16
    max_waiting: Annotated[Positive, Option("Maximum waiting requests; more are refused.")] = 1024
    api_keys: Annotated[
        str,
        Option(
            "File of API keys (`specinfer keys`); empty: any client is served, unless --api-key is given."
        ),
    ] = ""
    api_key: Annotated[
        str,
        Option(
            "One API key without limits, beside those of the file. Other users of the machine can read it."
        ),
    ] = ""
    prefix_scope: Annotated[
        Literal["all", "key"],
        Option(
            "Requests that share cached prompts: all, or key, only those of one API key, so that timing reveals no "
            "other key's prompts.",
            choices=("all", "key"),
        ),
    ] = "all"
    vllm_metrics: Annotated[
        bool, Option("Also export the load under vLLM's metric names, for endpoint pickers.")
    ] = False


@dataclass
class HttpOptions(TlsOptions):
    """Options of OpenAI's API over HTTP."""

    group: ClassVar[str] = "HTTP API"

    served_model_name: Annotated[
        str,
        Option(
            "Names of the model in calls, separated by commas; answers have the first. Empty: the gateways' name."
        ),
    ] = ""
    cors_origins: Annotated[
        str,
        Option(
            "Origins whose web pages may call, separated by commas, for example https://chat.example; * for all."
        ),
    ] = ""
    allowed_hosts: Annotated[
        str,
        Option(
            "Accepted Host headers, separated by commas; *.example.com for subdomains, * for all. Empty: on loopback "
            "localhost and numeric addresses, else all."
        ),
    ] = ""
