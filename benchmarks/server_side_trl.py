"""TRL's side of `server_rollout.py`: `GRPOTrainer` with `vllm_mode="server"`, driven by `evaluate`.

    python server_side_trl.py SETTINGS.json        in an environment with TRL and vLLM

The trainer's `_generate` is timed, as in `rollout_trl.py`: it generates, runs the tools and
generates again. Weights are fixed: TRL's hand-over wants CUDA, so it is left out here. Prints one
line of JSON a measurement.
"""

import json
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from server_tools import TOOLS


def cpu_seconds() -> float:
    """The CPU seconds so far of this process and its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    """Play the episodes."""
    warnings.simplefilter("ignore")
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
    from trl.generation.vllm_client import VLLMClient
    from trl.generation.vllm_generation import VLLMGeneration

    settings = json.loads(Path(sys.argv[1]).read_text())
    VLLMClient.init_communicator = lambda *_, **__: None  # wants CUDA
    VLLMGeneration.sync_weights = lambda *_, **__: None
    timings: list[dict[str, Any]] = []

    class Timed(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate(self, prompts: Any) -> Any:
            wall, cpu = time.perf_counter(), cpu_seconds()
            found = super()._generate(prompts)
            spent = {"wall_s": time.perf_counter() - wall, "cpu_s": cpu_seconds() - cpu}
            conversations = [
                [[*prompt, *said], [*[0] * len(prompt), *mask]]
                for prompt, said, mask in zip(*found[:3], strict=True)
            ]
            timings.append({**spent, "conversations": conversations})
            return found

    episodes = len(settings["prompts"]) * settings["group_size"]
    rows = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": prompt}]} for prompt in settings["prompts"]]
    )
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(settings["model"]),
        args=trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=episodes,
            per_device_eval_batch_size=episodes,
            num_generations=settings["group_size"],
            max_completion_length=settings["max_new_tokens"],
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=settings["url"],
            gradient_checkpointing=False,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(settings["model"]),
        tools=[TOOLS[settings["tool"]]],
    )
    trainer.remove_callback(PrinterCallback)
    for _ in range(settings["repetitions"] + 1):  # the first one warms up
        trainer.evaluate()
    for each in timings[1:]:
        print(json.dumps(each), flush=True)


if __name__ == "__main__":
    main()
