"""Kinds of fault that harnesses like this one are known for, each with the tests that exclude it.

A test may stand with one of its cases (in brackets) or with all of them. That every one of them is
collected, and with enough cases, is what is tested here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

GSM = "grading/test_gsm8k_grader.py::"
MATH = "grading/test_math_grader.py::"
PROGRAM = "grading/test_humaneval_program.py::"
WORKS = f"{PROGRAM}test_program_works"
SANDBOX = "grading/test_sandbox.py::"
PROPERTY = "grading/test_extractor_properties.py::test_property"
GENERATION = "test_generation.py::"
RIVER = "quant/test_river_build.py::"
CONFIG = "test_config.py::"
RECORDS = "test_records.py::"

FAULTS: list[tuple[str, list[str]]] = [
    # GSM8K
    (
        "a thousands separator splits a number",
        [f"{GSM}test_number_is_not_split_at_its_thousands_separator"],
    ),
    (
        "a comma behind the number is taken for a number",
        [f"{GSM}test_punctuation_behind_the_number_is_no_number"],
    ),
    (
        "currency signs and zeros make equal numbers different texts",
        [
            f"{GSM}test_currency_and_zeros_do_not_survive_extraction",
            f"{GSM}test_answers_are_compared_as_numbers",
        ],
    ),
    (
        "the answer of an invented further question is graded",
        [
            f"{GSM}test_invented_further_question_does_not_win",
            f"{PROPERTY}[1-gsm8k_ignores_what_follows_the_answer]",
        ],
    ),
    (
        "a sign is lost on one side",
        [
            f"{GSM}test_sign_is_kept",
            f"{GSM}test_answers_are_compared_as_numbers",
            "tasks/test_gsm_task.py::"
            "test_sign_commas_and_zeros_of_the_gold_answer_change_no_verdict",
        ],
    ),
    ("a list is fused into one number", [f"{GSM}test_list_is_not_fused_into_one_number"]),
    (
        "a percent sign or a line end hides the number",
        [f"{GSM}test_percent_sign_or_line_end_does_not_hide_the_number"],
    ),
    # MATH
    (
        "an answer that the parser rejects is not even equal to itself",
        [f"{MATH}test_identical_answers_are_equal_whatever_the_parser_says"],
    ),
    (
        "a unit is cut out of a command's name",
        [f"{MATH}test_brackets_and_units_do_not_break_each_other"],
    ),
    (
        "a box ends at its first brace",
        [
            f"{MATH}test_box_is_read_by_counting_braces_and_the_last_one_wins",
            f"{MATH}test_boxes_that_agree_up_to_the_first_brace_differ",
        ],
    ),
    (
        "a box spans to the text's last brace, or a withdrawn box wins",
        [
            f"{MATH}test_box_is_read_by_counting_braces_and_the_last_one_wins",
            f"{MATH}test_withdrawn_first_box_does_not_win",
            f"{PROPERTY}[1-math_ignores_what_stands_before]",
        ],
    ),
    ("a mixed number is a product", [f"{MATH}test_mixed_number_is_a_sum"]),
    (
        "the order of a list counts, or a base that the question names must be repeated",
        [
            f"{MATH}test_order_counts_in_tuples_and_not_in_lists",
            f"{MATH}test_missing_base_suffix_needs_a_base_in_the_question",
        ],
    ),
    (
        "a percent sign on one side makes answers differ",
        [f"{MATH}test_percent_and_currency_signs_are_dropped"],
    ),
    (
        "an absolute tolerance makes small numbers equal",
        [f"{MATH}test_numbers_are_equal_relative_to_their_size"],
    ),
    (
        "a tower of powers or a rambling text hangs the grader",
        [
            f"{MATH}test_tower_or_rambling_text_is_kept_from_the_algebra_system",
            f"{MATH}test_calculation_without_end_is_killed_at_the_deadline",
            f"{PROPERTY}[1-math_ends_fast]",
            f"{PROPERTY}[1-math_normalizes_fast]",
        ],
    ),
    (
        "grading outside the main thread fails",
        [f"{MATH}test_grading_in_threads_gives_the_same_verdicts_and_no_exception"],
    ),
    (
        "an empty or unfinished last box gives credit to an earlier one",
        [f"{MATH}test_empty_or_unfinished_last_box_gives_no_credit_to_an_earlier_one"],
    ),
    # HumanEval
    (
        "only one kind of fence is found, or a repeated signature breaks the program",
        [
            f"{WORKS}[{case}]"
            for case in (
                "python fence",
                "py fence",
                "Python3 fence",
                "fence with attributes",
                "fence without word",
                "tilde fence",
                "signature repeated",
                "signature repeated inside",
            )
        ],
    ),
    (
        "a closing fence alone eats the code before it",
        [
            f"{WORKS}[closing fence only]",
            f"{WORKS}[closing fence behind prose and code]",
            f"{WORKS}[closing tilde fence only]",
            f"{WORKS}[closing fence behind a body]",
        ],
    ),
    (
        "prose is run where a fence is not closed or reasoning stands first",
        [
            f"{WORKS}[fence never closed]",
            f"{WORKS}[fence never closed, next block cut]",
            f"{WORKS}[no fence, reasoning first]",
            f"{WORKS}[draft in the reasoning]",
            f"{WORKS}[marker in the reasoning]",
            f"{PROGRAM}test_text_without_a_solution_does_not_become_one",
        ],
    ),
    (
        "an inner function or a statement behind the function empties the program",
        [
            f"{WORKS}[inner function and trailing print]",
            f"{WORKS}[inner functions in a bare body]",
            f"{WORKS}[inner class and trailing call]",
            f"{PROGRAM}test_statements_behind_the_function_stay",
        ],
    ),
    (
        "markers of special tokens stay in the program",
        [
            *(f"{WORKS}[{case}]" for case in ("im_end", "im_start", "eot", "end of turn")),
            f"{PROGRAM}test_marker_inside_a_string_is_part_of_the_program",
            f"{PROPERTY}[1-humaneval_ignores_what_follows_the_turn]",
        ],
    ),
    (
        "leading blanks are stripped, or a body without a stop is dropped",
        [
            f"{PROGRAM}test_continuation_is_the_prompt_and_the_text_unchanged",
            f"{WORKS}[bare continuation]",
            f"{WORKS}[tab]",
            f"{WORKS}[body that lost its first blanks]",
        ],
    ),
    (
        "decoding the new tokens alone loses a leading blank",
        [
            f"{GENERATION}test_leading_blanks_are_kept_with_a_sentencepiece_tokenizer",
            "models/test_embedded.py::test_leading_blanks_survive_decoding",
        ],
    ),
    (
        "a program that exits ends the evaluation, or passes",
        [f"{SANDBOX}test_exit_or_printed_word_is_no_pass_and_ends_nothing_else"],
    ),
    (
        "what a program started lives on",
        [
            f"{SANDBOX}test_nothing_the_program_started_lives_on",
            f"{SANDBOX}test_endless_program_is_a_timeout",
        ],
    ),
    (
        "limits that the system refuses make every program fail",
        [
            f"{SANDBOX}test_refused_limits_and_missing_timers_do_not_fail_good_programs",
            f"{SANDBOX}test_interpreter_that_does_not_start_is_an_error",
        ],
    ),
    (
        "pass@k is 1 for k above n, or counts problems as completions",
        [
            "metrics/test_metrics.py::test_pass_at_k_by_hand",
            "metrics/test_metrics.py::test_one_completion_for_each_problem_has_an_interval",
        ],
    ),
    (
        "the grader is inert and passes everything or nothing",
        [
            "test_self_check.py::test_every_task_tells_its_right_answer_from_its_wrong_one",
            "test_self_check.py::"
            "test_a_verdict_that_is_off_stops_the_run_before_the_model_is_loaded",
            f"{SANDBOX}test_sandbox_is_checked_with_a_right_and_a_wrong_program",
        ],
    ),
    (
        "a part of the problems cannot be scored, or is taken for the whole",
        [
            "analysis/test_report.py::test_a_part_of_the_problems_is_said",
            "test_resume.py::test_the_run_says_how_to_grade_it",
            "test_embedded_run.py::test_the_summary_holds_what_was_measured",
        ],
    ),
    # Generation
    (
        "a prompt begins with two BOS",
        [
            "models/test_prompting.py::test_a_chat_prompt_has_one_bos_where_the_model_uses_one",
            "models/test_prompting.py::test_plain_text_has_one_bos_where_the_tokenizer_puts_one",
        ],
    ),
    (
        "only the first end token ends a text, or one in the prompt does",
        [
            f"{GENERATION}test_any_end_token_ends_the_text",
            f"{GENERATION}test_an_end_token_inside_the_prompt_ends_nothing",
            "models/test_loading.py::test_every_end_token_counts_wherever_it_is_named",
        ],
    ),
    (
        "a stop string is used letter by letter, kept in part, or empty",
        [
            f"{GENERATION}test_a_stop_string_ends_the_text_before_it",
            f"{GENERATION}test_stop_strings_given_as_one_string_are_refused",
            f"{GENERATION}test_an_empty_stop_string_is_refused",
            "tasks/test_task_registry.py::test_stop_strings_are_a_tuple_without_empty_strings",
        ],
    ),
    (
        "a stop string that is too wide cuts the reasoning",
        [
            "tasks/test_gsm_task.py::"
            "test_stop_strings_do_not_cut_reasoning_that_restates_the_question",
            "tasks/test_math500_task.py::test_stop_strings_cut_only_a_new_problem",
            "tasks/test_humaneval_task.py::test_base_stops_do_not_cut_inside_a_function_body",
        ],
    ),
    (
        "a budget beyond the context empties the prompt",
        [
            "test_run_cli.py::test_a_setting_that_the_model_cannot_serve_is_told",
            "test_run_cli.py::test_the_advice_on_a_long_prompt_can_be_followed",
        ],
    ),
    (
        "the last number of a text that was cut is an answer",
        [
            f"{GSM}test_token_limit_does_not_turn_half_a_text_into_an_answer",
            "analysis/test_summary.py::test_summary_by_hand",
        ],
    ),
    (
        "a batch gives another text than its prompts alone",
        [
            "test_anchors.py::test_a_batch_without_exits_gives_what_single_runs_give",
            "test_anchors.py::test_a_batch_at_planned_depths_gives_what_single_runs_give",
        ],
    ),
    (
        "the head reads a state that is not normed, or normed twice",
        [
            "models/test_adapter.py::test_the_head_norms_exactly_once",
            "test_anchors.py::test_river_equals_a_layer_mix_written_out",
        ],
    ),
    (
        "layers called one by one break with another transformers",
        [
            "models/test_adapter.py::test_layers_one_by_one_give_the_models_hidden_states",
            "models/test_adapter.py::test_cache_argument_is_read_from_the_signature",
            "models/test_adapter.py::test_a_layer_that_takes_no_known_cache_is_refused",
        ],
    ),
    (
        "dropping positions of the cache keeps all, or none",
        [
            "test_slot_cache.py::test_dropping_positions_leaves_exactly_the_others",
            "test_anchors.py::test_rollback_gives_the_same_continuation",
            "models/test_adapter.py::test_a_model_that_would_be_computed_wrongly_is_refused",
        ],
    ),
    # Quantization
    (
        "layers are left out because a group does not divide them",
        [
            "quant/test_grid.py::test_a_group_that_does_not_divide_names_layer_width_and_group",
            f"{RIVER}test_a_group_that_does_not_divide_stops_before_anything_is_written",
            "test_embedded_run.py::test_the_river_runs_on_4_bit_kernels",
        ],
    ),
    (
        "a kernel serves one dtype and fails with the others",
        [
            f"{RIVER}test_every_dtype_gives_logits_close_to_the_dequantized_weights",
            "quant/test_int4_linear.py::test_the_kernel_is_refused_with_the_reason",
        ],
    ),
    (
        "the head is quantized although it was left out",
        [
            f"{RIVER}test_head_and_embedding_stay_as_they_are_and_tied",
            "quant/test_head.py::test_16_bits_are_the_backbones_own_head",
        ],
    ),
    (
        "quantizing the head changes the embedding, or unties them",
        [
            f"{RIVER}test_head_and_embedding_stay_as_they_are_and_tied",
            "quant/test_head.py::test_backbone_and_embedding_stay_as_they_are_and_tied",
        ],
    ),
    (
        "a bias is lost or added twice",
        [
            "quant/test_int4_linear.py::test_zero_weights_give_exactly_the_bias",
            "quant/test_int4_linear.py::test_bias_is_added_once",
            "quant/test_int8_linear.py::test_zero_weights_give_exactly_the_bias",
            "quant/test_int8_linear.py::test_bias_is_added_once",
            f"{RIVER}test_every_dtype_gives_logits_close_to_the_dequantized_weights",
        ],
    ),
    # Run and records
    (
        "two runs share one folder",
        [
            f"{RECORDS}test_a_second_process_is_refused_in_one_line",
            "test_resume.py::test_a_second_run_of_the_same_is_refused",
        ],
    ),
    (
        "a value makes an awkward folder or another value",
        [
            f"{CONFIG}test_a_model_name_that_is_no_folder_name_is_refused",
            f"{CONFIG}test_a_path_reaches_the_run_as_it_was_quoted",
            f"{CONFIG}test_an_unquoted_equals_sign_is_explained",
            f"{CONFIG}test_limit_and_exp_limit_are_one_setting",
            "sweeps/test_folder.py::test_a_cell_is_named_by_its_place_and_what_only_it_has",
        ],
    ),
    (
        "a misspelt key is ignored",
        [
            f"{CONFIG}test_an_unknown_key_is_refused",
            f"{CONFIG}test_a_key_added_below_hydra_is_refused",
        ],
    ),
    (
        "a key that is null or missing crashes late",
        [
            f"{CONFIG}test_whatever_cannot_be_composed_is_told_in_one_line",
            f"{CONFIG}test_a_missing_value_says_how_to_give_it",
            "tracking/test_payload.py::test_the_config_says_what_ran_on_what",
        ],
    ),
    (
        "a run dies for want of a login, or several land in one",
        [
            "tracking/test_push.py::test_without_a_key_it_logs_offline_and_asks_nobody",
            "tracking/test_tracking_cli.py::test_three_cells_are_three_runs_and_one_for_the_sweep",
        ],
    ),
    (
        "data cannot be had without the hub",
        [
            "tasks/test_hub_data.py::test_offline_with_empty_cache_names_data_set_and_ways_out",
            "test_run_cli.py::test_a_run_without_a_hub_uses_what_lies_on_disk",
        ],
    ),
    (
        "the clock stops before the device, or counts the first call",
        [
            f"{GENERATION}test_work_of_the_device_is_waited_for_at_both_ends",
            "test_speedup.py::test_the_first_steps_of_each_arm_are_not_timed",
        ],
    ),
    (
        "stored answers of other settings are used",
        [
            f"{CONFIG}test_whatever_changes_the_text_changes_the_identity",
            f"{CONFIG}test_what_settings_came_to_changes_the_identity",
            "test_resume.py::test_a_run_is_known_by_its_weights_and_by_what_ends_a_text",
        ],
    ),
    (
        "half a last line spoils the file",
        [
            f"{RECORDS}test_half_a_last_line_is_no_sample",
            f"{RECORDS}test_a_sample_behind_half_a_line_has_a_line_of_its_own",
            "test_resume.py::test_half_a_line_is_cut_off_and_its_sample_made_again",
        ],
    ),
    (
        "a front keeps what is beaten in a tie, or drops what is equal",
        [
            "analysis/test_pareto.py::test_front_by_hand",
            "analysis/test_pareto.py::test_front_follows_the_definition_in_three_figures",
        ],
    ),
    (
        "NaN spoils JSON, table or figure, or a figure needs a display",
        [
            "analysis/test_summary.py::test_nan_of_a_measurement_becomes_null",
            f"{RECORDS}test_nan_is_refused_and_leaves_no_trace",
            "analysis/test_tables.py::test_missing_figures_are_words",
            "analysis/test_plots.py::test_nan_leaves_a_gap_and_not_an_empty_chart",
            "analysis/test_plots.py::test_png_is_written_without_a_display",
        ],
    ),
]
TABLES = 24  # the first of them are about reading text: a table of several inputs each


@pytest.fixture(scope="module")
def collected() -> Counter[str]:
    """Cases of each test in the files that are named above, and each case as 1."""
    files = sorted({f"tests/{test.partition('::')[0]}" for _, tests in FAULTS for test in tests})
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    cases = [line for line in found.stdout.splitlines() if line.startswith("tests/")]
    return Counter(cases) + Counter(case.partition("[")[0] for case in cases if "[" in case)


@pytest.mark.parametrize("number", range(1, len(FAULTS) + 1))
def test_every_kind_of_fault_has_tests_that_are_collected(
    number: int, collected: Counter[str]
) -> None:
    fault, tests = FAULTS[number - 1]
    counts = [collected[f"tests/{test}"] for test in tests]
    assert all(counts), (fault, dict(zip(tests, counts, strict=True)))
    assert sum(counts) >= (3 if number <= TABLES else 2), fault


def test_no_kind_stands_twice_and_none_has_gone() -> None:
    assert len({fault for fault, _ in FAULTS}) == len(FAULTS) == 57
