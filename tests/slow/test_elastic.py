"""DDP and FSDP2 under a run, on as many processes or on others: some of the cases; tests/prove asks the laws of all."""

from elastic import (  # noqa: F401  the laws, for pytest
    pytest_generate_tests,
    resumed,
    runs,
    test_a_finished_run_has_nothing_to_do,
    test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one,
    test_each_form_of_pieces_is_read_by_one_process,
    test_saved_on_some_ranks_restored_on_others,
    test_without_the_reducers_warmth_three_ranks_sum_in_another_order,
)

EVERY = {
    "test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one": 4,
    "test_saved_on_some_ranks_restored_on_others": 6,
    "test_each_form_of_pieces_is_read_by_one_process": 3,
    "test_a_finished_run_has_nothing_to_do": 2,
}
