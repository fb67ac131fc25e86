"""How the demo pair was made: `python -m tasks.demo.recipe OUT` makes another pair of the same kind.

corpus -> tokenizer -> target trained on the corpus -> drafter trained on the target's own continuations -> prompts.
The weights in `tasks/demo/target` and `tasks/demo/dflash` are the ones every published figure was measured with. The
recipe gives the same architecture, file layout and behaviour, not the same bits: training in bfloat16 on several
threads is not reproducible to the bit.

Needs torch, except `corpus`, `padding`, `bf16` and `prompts`.
"""
