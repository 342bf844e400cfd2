"""DDP and FSDP2 under a run, on real processes: every number of ranks, every form, every wrapper."""

from elastic import (  # noqa: F401  the laws, for pytest
    pytest_generate_tests,
    resumed,
    runs,
    test_a_finished_run_has_nothing_to_do,
    test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one,
    test_each_form_of_pieces_is_read_by_one_process,
    test_saved_on_some_ranks_restored_on_others,
    test_the_world_may_change_as_often_as_it_likes,
    test_what_four_have_saved_eight_go_on_with,
    test_without_the_reducers_warmth_three_ranks_sum_in_another_order,
)

EVERY: dict[str, int] = {}
