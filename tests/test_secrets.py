"""Credentials do not reach records, reports or error messages, and other words are left as they are."""

import json
import time
from pathlib import Path

import pytest

from spectune.cli.main import main
from spectune.domain.findings import Evidence, Finding
from spectune.domain.secrets import is_secret, redact_argv, redact_env, redact_text, redacted, url_as_shown
from spectune.domain.trial import Failure, ServerFacts
from spectune.errors import BadInput, StudyFileError
from spectune.hosts.ssh import ssh_host
from spectune.store.places import place_of
from spectune.study_file.load import load_study_file
from spectune.transport.url import parse_base_url

VALUE = "s3cr3tv4lue"


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "OPENAI_API_KEY", "api-key", "DB_PASSWORD", "client_secret", "hf-token", "PGPASSWORD"),
        *("HF_TOKEN_2", "password1"),
        *("MY_PASS", "GITHUB_PAT", "COOKIE", "SENTRY_DSN", "MYSQL_PWD", "AWS_SECRET_ACCESS_KEY", "apiKey"),
    ],
)
def test_names_of_credentials_are_recognised(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("max-model-len", "TOKENIZERS_PARALLELISM", "num-draft-tokens", "KEYBOARD", "monkey", "max-tokens"),
        *(
            "tokenizer",
            "eos_token",
            "bos-token",
            "PWD",
            "OLD_PWD",
            "sort_key",
            "forward-pass",
            "passes",
            "",
            "_2",
            "max-tokens-2",
        ),
    ],
)
def test_names_of_other_things_are_not(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={VALUE}",
        f"env HF_TOKEN={VALUE} vllm serve m",
        f"docker run -e HF_TOKEN={VALUE} image",
        f"docker run --env=HF_TOKEN={VALUE} image",
        f"docker run -eHF_TOKEN={VALUE} image",
        f"bash -c 'export MY_PASS={VALUE}; vllm serve m'",
        f"HF_TOKEN='{VALUE} with a blank' vllm serve m",
        f"vllm serve m --api-key {VALUE} --port 1",
        f"--hf-token={VALUE}",
        f"curl -H 'X-Api-Key: {VALUE}' -H 'Authorization: Bearer {VALUE}'",
        f"Cookie: session={VALUE}; other={VALUE}",
        f'{{"api_key": "{VALUE}"}}',
        f"non-default args: {{'api_key': ['{VALUE}']}}, api_key=['{VALUE}']",
        f"postgres://me:{VALUE}@host/db redis://:{VALUE}@host http://me:p@{VALUE}@host/",
        f"https://{VALUE}@host/repository",
        f"http://host/v1?api_key={VALUE}&page=1",
        f"the key hf_{VALUE}{VALUE} and sk-{VALUE}{VALUE}",
        f"SECRET_KEY_BASE={VALUE}",
        f"curl -s -u me:{VALUE} https://host; curl --user=me:{VALUE} -o x http://host; curl -U me:{VALUE} host",
        f"echo x | docker login -u me -p {VALUE} host",
        f"podman login host -p{VALUE} && helm registry login -p {VALUE} host",
        f"sshpass -p {VALUE} ssh host; sshpass -p{VALUE} ssh host; redis-cli -h host -a {VALUE} ping",
        f"mysql -u root -p{VALUE} db < dump",
        f"curl -sSu me:{VALUE} h; curl --oauth2-bearer {VALUE} h; curl -b session={VALUE} h",
        f"curl -H 'Authorization: Bearer {VALUE}' h; wget --http-password={VALUE} h; http -a me:{VALUE} h",
        f"aws configure set aws_secret_access_key {VALUE}; npm config set _authToken {VALUE}",
        f"[default]\naws_secret_access_key = {VALUE}\nregion = a",
        f"env:\n  PGPASSWORD: {VALUE}\n  DB_PWD: {VALUE}  # ours\n- API_TOKEN: {VALUE}",
        f"FROM a\nENV HF_TOKEN {VALUE}\nARG API_KEY {VALUE}\n",
        f"setenv HF_TOKEN {VALUE}",
        f"twine upload -u me -p {VALUE}; az login -u me -p {VALUE}; mongosh -u me -p {VALUE}",
        f"ldapsearch -D cn=a -w {VALUE}; sqlcmd -U sa -P {VALUE}; lftp -u me,{VALUE} h; smbclient -U me%{VALUE} x",
        f"openssl enc -k {VALUE}; openssl rsa -passin pass:{VALUE}; ssh-keygen -t rsa -N {VALUE}",
        f"wandb login --relogin {VALUE}; vault login {VALUE}; cargo login {VALUE}; ngrok config add-authtoken {VALUE}",
        f"tailscale up --authkey {VALUE}; nmcli dev wifi connect a password {VALUE}",
        f"machine host login me password {VALUE}",
        f"echo {VALUE} | docker login -u me --password-stdin; printf %s {VALUE} | gh auth login --with-token",
        f"https://bucket.s3.amazonaws.com/x?X-Amz-Date=1&X-Amz-Signature={VALUE}",
        f"https://account.blob.core.windows.net/x?sv=1&sig={VALUE}",
        f"https://hooks.slack.com/services/T0/B0/{VALUE}",
        f"git remote add origin https://oauth2:{VALUE}@host/a; git clone https://{VALUE}@host/a",
        f"gsk_{VALUE}{VALUE} r8_{VALUE}{VALUE} tskey-{VALUE}{VALUE} npm_{VALUE}{VALUE} sk_live_{VALUE}{VALUE}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{VALUE}\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_credential_is_found_wherever_it_stands_in_a_text(text: str) -> None:
    assert VALUE not in redact_text(text)
    assert "***" in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "--max-tokens 5",
            "--tokenizer /models/a",
            "tokenizer=/models/a",
            "eos_token='</s>'",
            "bos_token_id=1",
        ),
        *("HF_TOKEN=$HF_TOKEN", "HF_TOKEN=${HF_TOKEN}", "docker run -e HF_TOKEN image", "api_key=None"),
        *("ssh://me@host", "me@host:path", "http://127.0.0.1:8000/v1", "[::1]:8000", "PWD=/home/me"),
        *(
            '{"eos_token": "</s>"}',
            "tokens/s=44.2",
            "the token: 5 of 6",
            "--api-key",
            "password: see the docs",
        ),
        *(
            "docker run -p 8000:8000 -u 1000:1000 image",
            "docker login -u me host",
            "mysql -u me -p db",
            "mkdir -p a:b",
        ),
        "docker run -p 8000:8000 --user 1000:1000 image --api-key-env OPENAI_API_KEY --ssl-keyfile key.pem",
        "chown -R me:grp a; docker exec -u me:grp c ls; podman run --user a:b i; env -u HF_TOKEN a; set -e",
        "ENV A b\nARG B=c\nkey: value\nthe token: a piece of text\neos_token: </s>\npassword: see the docs",
        "wandb login; vault login; docker login --password-stdin; ssh-keygen -t rsa; openssl x509 -in a -out b",
        "curl -b cookies.txt -H 'Content-Type: application/json' -o a:b http://h; sort -k 2 -u a:b; pip -U torch",
        "echo a | docker run -i b; http://h/?significant=12345678&signal=12345678; git config user.name me",
        "llama-server -m a.gguf -u 1 -p prompt:x; python -m http.server -b 1.2.3.4; zip -r a b; unzip -P",
        *(
            "curl -u me http://h",
            "curl http://h:1 -o a",
            "git -p log",
            "ssh -p 2222 h",
            "model_base=a",
            "base=1",
        ),
        *("sort_key=name", "num_key_value_heads=8", "<your-token>", "HF_TOKEN=<your-token>", "key=5"),
    ],
)
def test_what_is_no_credential_is_left_as_it_is(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "x-",
        "token=",
        "://",
        "http://a:",
        '"a"',
        "--a ",
        "-",
        "Bearer a",
        "api-key: ",
        "curl -u ",
        "mysql -",
        "echo ",
        "ENV a ",
        "wandb login ",
        "a: ",
        "a: b\n",
        "https -a ",
    ],
)
def test_long_texts_take_no_time(piece: str) -> None:
    started = time.process_time()
    redact_text(piece * (60_000 // len(piece)))
    assert time.process_time() - started < 3


def test_values_are_replaced_in_every_form_of_a_command() -> None:
    words = ["docker", "run", "-e", f"HF_TOKEN={VALUE} and more", "-e", "HF_TOKEN", f"--env=A_PASS={VALUE}"]
    words += ["image", "--api-key", "abc", "--hf-token=def", "--max-tokens", "5"]
    assert redact_argv(words) == (
        *("docker", "run", "-e", "HF_TOKEN=***", "-e", "HF_TOKEN", "--env=A_PASS=***"),
        *("image", "--api-key", "***", "--hf-token=***", "--max-tokens", "5"),
    )
    assert redact_argv(["curl", "-u", "me:pw", "h"]) == ("curl", "-u", "***", "h")
    assert redact_argv(["docker", "login", "-ppw", "h"]) == ("docker", "login", "-p***", "h")
    assert redact_argv(["docker", "run", "-u", "1:2", "-p", "1:2"]) == (
        "docker",
        "run",
        "-u",
        "1:2",
        "-p",
        "1:2",
    )
    script = f"HF_TOKEN={VALUE} vllm serve m"
    assert redact_argv(["bash", "-c", script]) == ("bash", "-c", "HF_TOKEN=*** vllm serve m")
    env = {"HF_TOKEN": "x", "A": "b", "PROXY": "http://me:pw@h"}
    assert redact_env(env) == {"HF_TOKEN": "***", "A": "b", "PROXY": "http://me:***@h"}


def test_what_a_server_reports_is_recorded_without_its_key() -> None:
    told = {
        "api_key": VALUE,
        "inner": [{"admin_api_key": VALUE}],
        "tokenizer_path": "/m",
        "eos_token": "</s>",
    }
    facts = ServerFacts(engine="sglang", reported=told)
    assert facts.reported == {
        "api_key": "***",
        "inner": [{"admin_api_key": "***"}],
        "tokenizer_path": "/m",
        "eos_token": "</s>",
    }


def test_words_of_a_log_are_recorded_without_credentials() -> None:
    failure = Failure(phase="launch", cause=f"HF_TOKEN={VALUE}", log_tail=(f"--api-key {VALUE}",))
    finding = Finding(
        code="c",
        severity="note",
        subject="s",
        message=f"at http://u:{VALUE}@h/",
        evidence=(Evidence(source="log", detail=f"api_key='{VALUE}'"),),
    )
    assert VALUE not in failure.model_dump_json() + finding.model_dump_json()


STUDY = """\
question: q
engine: {name: llamacpp, command: [%s]}
target: m.gguf
arms:
  - {method: ngram, num_draft_tokens: 4}
"""


@pytest.mark.parametrize(
    "words",
    [
        f"env, HF_TOKEN={VALUE}, llama-server",
        f"docker, run, -e, GITHUB_PAT={VALUE}, image",
        f"docker, run, '--env=PGPASSWORD={VALUE}', image",
        f"bash, -c, 'MY_PASS={VALUE} llama-server'",
        f"llama-server, --api-key, {VALUE}",
    ],
)
def test_a_study_file_with_a_credential_in_its_command_is_refused(words: str, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY % words)
    with pytest.raises(StudyFileError, match=r"engine\.command: .*looks like a credential") as caught:
        load_study_file(file)
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("words", ["docker, run, -e, HF_TOKEN, image", "'--max-tokens', 5, --tokenizer, /m"])
def test_a_command_that_passes_a_variable_on_is_not_refused(words: str, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text((STUDY % words).replace(" 5,", " '5',"))
    load_study_file(file)


@pytest.mark.parametrize(
    "setting",
    [
        f"target=https://me:{VALUE}@hub/m",
        f"question=why HF_TOKEN={VALUE}",
        f"host=ssh://me:{VALUE}@box",
        f"host=me:{VALUE}@box",
        f"arms.0.flags.x=http://me:{VALUE}@proxy",
        f"arms.0.env.SOME_PASS={VALUE}",
    ],
)
def test_a_credential_anywhere_in_a_study_is_refused_and_not_repeated(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY % "llama-server")
    assert main(["plan", str(file), "--set", setting]) == 2
    said = capsys.readouterr().err
    assert "looks like a credential" in said and VALUE not in said


@pytest.mark.parametrize(
    "url",
    [
        f"http://me:{VALUE}@host",
        f"http://host/v1?key={VALUE}",
        f"ftp://me:{VALUE}@host",
        f"http://me:{VALUE}@host:99999",
        f"http://host/#{VALUE}",
    ],
)
def test_an_address_of_a_server_is_refused_without_its_credential(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput) as caught:
        parse_base_url(url)
    assert VALUE not in str(caught.value)
    assert main(["bench", url, "--model", "m"]) == 2
    assert VALUE not in capsys.readouterr().err


@pytest.mark.parametrize(
    "place", [f"s3://key:{VALUE}@bucket/p", f"gs://key:{VALUE}@b/p", f"s3://b/p?s={VALUE}"]
)
def test_a_place_of_a_study_is_refused_without_its_credential(place: str) -> None:
    with pytest.raises(BadInput) as caught:
        place_of(place)
    assert VALUE not in str(caught.value)


def test_a_destination_of_ssh_is_refused_without_its_password() -> None:
    with pytest.raises(BadInput) as caught:
        ssh_host(f"ssh://me:{VALUE}@box/path")
    assert VALUE not in str(caught.value)
    with pytest.raises(BadInput, match="password") as caught:
        ssh_host(f"me:{VALUE}@box")
    assert VALUE not in str(caught.value)


def test_an_address_is_shown_by_its_place_alone() -> None:
    assert url_as_shown("http://u:p@h:1/x?k=1#f") == "http://h:1/x"
    assert url_as_shown("s3://k:s@b/p") == "s3://b/p"
    assert url_as_shown("h:8000/a?b") == "h:8000/a"


def test_a_comment_of_the_study_file_is_recorded_without_its_credential(tmp_path: Path) -> None:
    from spectune.api.before_run import load_study

    file = tmp_path / "study.yaml"
    file.write_text(f"# HF_TOKEN={VALUE}\nname: s\n" + STUDY % "llama-server")
    (tmp_path / "m.gguf").write_bytes(b"")
    planned = load_study(file)
    planned.prepare(tmp_path / "out", check=False)
    written = [path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any("looks" in text or "llama-server" in text for text in written)
    assert not any(VALUE in text for text in written)


def test_a_record_without_credentials_is_the_same_record() -> None:
    value = {"a": ["x", 1, None, {"b": (1.5, "y")}], "eos_token": "</s>"}
    assert redacted(value) == value
    assert json.dumps(redacted(value)) == json.dumps(value)
