"""What went wrong in other people's GRPO, and where it is guarded here: an index of the tests by defect and complaint.

Each row: a thread or project in which it happened (PR = pull request), then tests, whose docstrings name it; or
"FILE: words" of the passage that answers; or "not ours: reason". The tests below keep the index from rotting."""
import ast
import glob
import os
import re

from conftest import ROOT

READ = {                                                # defects found by reading the code
    "nanochat": ["test_padding_a_row_leaves_its_gradient", "test_training_forward_matches_the_rollout",     # no EOS
                 "test_method_off_is_plain_sampling",                                       # samples top-k, scores all
                 "test_gradient_does_not_depend_on_how_it_is_cut"],                         # a denominator per pass
    "tiny-grpo": ["test_padding_a_row_leaves_its_gradient", "test_method_off_is_plain_sampling",            # pad is EOS
                  "test_prompts_have_one_bos", "test_answers_equal"],                       # gold as a substring
    "GRPO-Zero": ["test_gradient_does_not_depend_on_how_it_is_cut",                         # logs the last micro-batch
                  "test_method_off_is_plain_grpo", "test_advantages_stay_within_a_group"],  # groups by text
    "nano-aha": ["test_logged_figures_are_what_they_say", "test_docstring_example",         # entropy divided twice
                 "test_killed_after_any_step_it_goes_on_bit_for_bit", "test_every_number_of_a_run_is_a_flag"],
    "simple_GRPO": ["test_training_forward_matches_the_rollout", "test_method_off_is_plain_grpo",           # T .9 and 1
                    "test_no_evaluated_text_and_no_swallowed_error"],
    "rasbt": ["test_clip_table", "test_gradient_of_the_kl_estimator", "test_method_off_is_plain_grpo"],
    "rlhf-book": ["test_kl_estimator_against_the_exact_kl", "test_gradient_does_not_depend_on_how_it_is_cut"],
    "nanoGRPO": ["test_method_off_is_plain_grpo", "test_evaluation_counts",                 # rows of another prompt
                 "test_method_off_is_plain_sampling"],                                      # no attention mask
    "minimind": ["test_method_off_is_plain_sampling", "test_words_that_are_not_there",      # top-p nobody asked for
                 "test_training_forward_matches_the_rollout", "test_method_off_is_plain_grpo"],
    "theLMbook": ["test_prompts_have_one_bos", "test_prompt_is_shown_as_the_model_sees_it"],    # no chat template
    "minRL": ["test_tokens_never_become_text_and_tokens_again"],
    "beyond-nanogpt": ["test_training_forward_matches_the_rollout", "test_aggregations_on_an_example",
                       "test_tokens_never_become_text_and_tokens_again"]}

ASKED = {                                               # what users of other trainers report and ask
    1: ["trl PR2708", "test_training_forward_matches_the_rollout", "test_method_off_is_plain_sampling"],
    2: ["trl PR4970", "test_padding_a_row_leaves_its_gradient", "test_words_that_are_not_there"],
    3: ["trl PR7039", "test_load_model_with_many_ends_a_padded_head_and_dropout", "test_method_off_is_plain_sampling",
        "test_logged_figures_are_what_they_say"],
    4: ["MemGen PR33", "test_padding_a_row_leaves_its_gradient"],
    5: ["unsloth-zoo PR832", "test_training_forward_matches_the_rollout", "test_padding_a_row_leaves_its_gradient"],
    6: ["trl PR6439", "test_method_off_is_plain_grpo"],
    7: ["trl PR3248", "test_logged_figures_are_what_they_say", "README.md: Truncated completions?"],    # no option
    8: ["trl PR6654", "test_padding_and_company_do_not_reach_a_rows_log_probs"],
    9: ["trl issue2703", "test_first_pass_loss_is_zero_and_its_gradient_is_reinforce", "README.md: The loss is 0"],
    10: ["minimind issue775", "test_method_off_is_plain_grpo", "README.md: Why is the ratio always 1?"],
    11: ["unsloth issue4502", "test_bfloat16_copy_rolls_out", "test_it_learns", "README.md: logp_gap_max"],
    12: ["reasoning-from-scratch issue243", "test_gspo_ratio_is_the_geometric_mean"],
    13: ["reasoning-from-scratch PR240", "test_clip_table"],
    14: ["trl issue3021", "test_gradient_does_not_depend_on_how_it_is_cut"],
    15: ["verl issue3741", "test_gradient_does_not_depend_on_how_it_is_cut"],
    16: ["trl PR3138", "test_aggregations_on_an_example"],
    17: ["understand-r1-zero issue11", "test_aggregations_on_an_example", "README.md: sequence, group or token?"],
    18: ["grpo-flat issue2", "test_advantages_stay_within_a_group"],
    19: ["trl PR5640", "test_method_off_is_plain_grpo"],            # a choice: dead groups stay in the KL
    20: ["trl PR6365", "test_method_off_is_plain_grpo", "ngrpo.py: Dead rows stay in the denominators"],
    21: ["NeMo-RL PR4161", "test_advantages_closed_forms"],
    22: ["tinker-cookbook issue579", "README.md: Why divide by the standard deviation?"],
    23: ["RLinf issue273", "test_advantages_closed_forms"],
    24: ["trl issue3678", "test_no_tensor_holds_the_logits_of_all_tokens"],
    25: ["trl issue3017", "test_gradient_does_not_depend_on_how_it_is_cut", "test_micro_batches_cover_each_row_once"],
    26: ["trl issue2858", "test_bad_flags"],
    27: ["trl PR3495", "test_padding_and_company_do_not_reach_a_rows_log_probs",
         "test_micro_batches_cover_each_row_once"],
    28: ["trl issue2927", "test_logged_figures_are_what_they_say"],
    29: ["trl issue2610", "test_rows_do_not_depend_on_their_company", "test_logged_figures_are_what_they_say"],
    30: ["trl issue3683", "test_layer_checkpointing_stays_out_of_the_rollout"],
    31: ["ms-swift PR3135", "test_method_off_is_plain_sampling", "test_words_that_are_not_there"],
    32: ["trl PR3494", "test_method_off_is_plain_sampling", "test_words_that_are_not_there"],
    33: ["trl issue6789", "test_method_off_is_plain_grpo"],
    34: ["trl issue4159", "test_training_forward_matches_the_rollout"],
    35: ["trl PR3867", "test_it_learns"],
    36: ["trl PR2669", "test_head_is_float32_under_autocast"],
    37: ["trl issue5224", "test_tokens_never_become_text_and_tokens_again"],
    38: ["vllm issue13175", "test_ids_past_the_tokenizer_are_never_sampled",
         "test_load_model_with_many_ends_a_padded_head_and_dropout"],
    39: ["open-r1 PR462", "test_prompts_have_one_bos"],
    40: ["open-r1 issue235", "test_prompt_asks_for_what_the_checker_reads"],
    41: ["open-r1 PR566", "test_bad_problem_files"],
    42: ["verl PR5635", "test_no_evaluated_text_and_no_swallowed_error"],
    43: ["Math-Verify issue65", "test_hostile_answers_take_no_time_off_the_main_thread"],
    44: ["trl PR5281", "test_hostile_answers_take_no_time_off_the_main_thread", "test_words_that_are_not_there"],
    45: ["pytorch/rl PR3542", "test_answers_equal"],
    46: ["trl issue3903", "not ours: the reward has no part for format; accuracy is measured before the first step"],
    47: ["AReaL PR1634", "test_bfloat16_copy_rolls_out", "README.md: weights, optimizer, head and log-probs"],
    48: ["trl issue3015", "test_improbable_tokens_do_not_overflow"],
    49: ["rlhf-book issue489", "test_kl_estimator_against_the_exact_kl"],
    50: ["verl PR2953", "test_gradient_of_the_kl_estimator", "ngrpo.py: as a loss, on policy"],
    51: ["theLMbook issue8", "test_reference_never_changes"],
    52: ["trl PR5790", "test_evaluation_does_not_disturb_training", "test_train_and_test_share_no_sum"],
    53: ["open-r1 issue450", "test_killed_after_any_step_it_goes_on_bit_for_bit"],
    54: ["simpleRL issue43", "test_nothing_to_build"],
    55: ["T2I-R1 issue14", "README.md: bench/RESULTS.md", "bench/RESULTS.md: runs/demo_seed1.jsonl"],
    56: ["ZeroSearch issue23", "bench/RESULTS.md: A real model, and a null"],
    57: ["ms-swift issue3980", "test_bad_flags", "test_edges_and_switches_run"],
    58: ["TinyZero issue23", "README.md: ## Two commands"],
    59: ["trl issue6800", "test_method_off_is_plain_sampling"],
    60: ["transformers use_model_defaults", "test_method_off_is_plain_sampling", "test_words_that_are_not_there"],
    61: ["trl issue2854", "test_formulas_have_their_equation_numbers"]}


def test_every_row_has_its_guard():
    """Tests that exist and say what they guard; passages that are there."""
    said = {}
    for path in glob.glob(os.path.join(ROOT, "tests", "test_*.py")):
        with open(path) as f:
            said |= {node.name: ast.get_docstring(node) or "" for node in ast.parse(f.read()).body
                     if isinstance(node, ast.FunctionDef)}
    assert list(ASKED) == list(range(1, 62)) and len(READ) == 12
    for thread, *guards in [[name, *guards] for name, guards in READ.items()] + list(ASKED.values()):
        assert guards
        for guard in guards:
            if guard.startswith("test_"):
                assert all(re.search(rf"\b{word}\b", said[guard]) for word in thread.split()), (thread, guard)
            elif not guard.startswith("not ours: "):
                file, words = guard.split(": ", 1)
                with open(os.path.join(ROOT, file)) as f:
                    assert words in f.read(), guard
