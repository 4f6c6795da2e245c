//! The tests, one file for each part of the promises.

mod appending;
mod appending_together;
mod attributes;
mod behind_the_end;
mod coherence;
mod copying;
mod descriptors;
mod exerciser;
mod export;
mod full;
mod id_mapped;
mod large;
mod links;
mod locks;
mod mapping;
mod mounts;
mod names;
mod opening;
mod renames;
mod rights;
mod shared_pages;
mod sizes;
mod space;
mod special;
mod times;
mod unlinked;
mod vectored;

use crate::{Needs, Test};

/// Names tests by their functions.
macro_rules! tests {
    ($($needs:ident: $($module:ident :: $test:ident),+ $(,)?;)+) => {
        vec![$($(Test { name: concat!(stringify!($module), "::", stringify!($test)), needs: Needs::$needs, run: $module::$test },)+)+]
    };
}

pub(crate) fn tests() -> Vec<Test> {
    tests! {
        Nothing:
            names::any_bytes_but_nul_and_slash,
            names::one_to_255_bytes,
            names::paths_up_to_path_max,
            names::symbolic_links_up_to_forty,
            names::symbolic_links_hold_1_to_4095_bytes,
            names::what_is_no_directory,
            names::trailing_slashes,
            names::dot_and_dot_dot,
            links::one_file_of_many_names,
            links::sixty_five_thousand_and_no_more,
            links::removal_by_the_right_call,
            links::directories_count_their_subdirectories,
            renames::replace_and_refuse,
            renames::exchange,
            renames::whiteout,
            renames::directories,
            renames::the_name_is_always_there,
            opening::exclusive_creation_has_one_winner,
            opening::flags_that_refuse,
            opening::path_descriptors,
            opening::appends_of_many_processes,
            opening::nameless_files,
            opening::a_running_program_is_not_written,
            appending::large_direct_writes,
            appending::asynchronous_direct_writes,
            appending::direct_behind_cached,
            appending::by_turns_with_little_space,
            appending::flags_of_one_write,
            appending_together::cached_records_of_any_length,
            appending_together::cached_and_direct_records,
            appending_together::at_the_end_of_space,
            unlinked::still_open,
            unlinked::replaced_and_still_open,
            unlinked::a_directory_that_is_gone,
            special::fifos,
            special::sockets,
            special::devices,
            special::regular_files_are_always_ready,
            sizes::sparse_to_16_tebibytes,
            sizes::offsets_near_the_end_of_numbers,
            sizes::truncation_both_ways,
            sizes::allocation_modes,
            sizes::allocation_refusals,
            sizes::holes_and_data,
            copying::ranges,
            copying::refusals,
            exerciser::random_operations,
            descriptors::agree,
            descriptors::agree_with_little_space,
            descriptors::agree_at_the_end_of_space,
            mapping::shared_is_coherent,
            mapping::private_is_private,
            mapping::beyond_the_end,
            mapping::rights,
            behind_the_end::truncation,
            behind_the_end::writes_behind_a_gap,
            behind_the_end::writes_at_the_end,
            behind_the_end::growth_beside_stores,
            behind_the_end::allocation,
            behind_the_end::copies,
            behind_the_end::direct_writes,
            coherence::a_hole_before_cached_bytes,
            coherence::a_hole_before_cached_bytes_with_little_space,
            coherence::cached_reads_beside_direct_writes,
            coherence::cached_reads_beside_libaio,
            coherence::cached_reads_beside_io_uring,
            shared_pages::stores_beside_writes,
            shared_pages::stores_beside_synchronous_writes,
            shared_pages::stores_beside_writes_with_little_space,
            shared_pages::stores_beside_copies,
            vectored::flags,
            vectored::vectors,
            locks::whole_files,
            locks::ranges_of_processes,
            locks::ranges_of_open_files,
            locks::leases,
            locks::notices,
            space::file_system_totals,
            space::files_take_what_they_hold,
            space::a_nameless_inode_counts,
            full::removed_space_is_there_for_fallocate,
            full::removed_space_is_there_for_writes,
            full::replaced_space_is_there_at_once,
            full::a_writer_is_told_in_time,
            full::what_is_there_is_written_over,
            times::set_now_and_omitted,
            times::from_1901_to_2446,
            times::changed_by_what_changes,
            times::kept_by_late_writes,
            times::who_may_set_them,
            times::access_times,
            times::birth,
            rights::permissions_of_three_classes,
            rights::groups_beyond_the_first,
            rights::owners_change_by_the_rules,
            rights::set_id_bits_go_with_a_write,
            rights::set_group_id_goes_with_a_write_from_outside,
            rights::set_group_id_goes_with_an_allocation_from_outside,
            rights::set_id_bits_go_with_a_new_owner,
            rights::sticky_directories,
            rights::directories_hand_their_group_on,
            rights::the_umask_applies,
            rights::root_may,
            attributes::set_replaced_listed_removed,
            attributes::names_values_and_namespaces,
            attributes::who_may,
            attributes::access_lists,
            attributes::default_lists_are_inherited,
            attributes::capabilities_go_with_a_change,
            large::many_names,
            large::names_that_stay_are_listed_once,
            large::hundred_levels,
            large::many_open_files,
            large::large_files,
            export::handles_lead_to_files,
            export::handles_of_removed_files_are_stale;
        Remount:
            large::a_listing_goes_on_after_changes_and_remounts,
            large::many_attributes,
            export::handles_cookies_and_numbers_survive_a_remount,
            space::blocks_after_an_attribute,
            space::blocks_after_a_synchronised_write,
            space::blocks_of_given_space_stay,
            mounts::read_only,
            mounts::no_devices_no_set_id_no_programs,
            mounts::synchronous,
            mounts::times_of_access,
            mounts::lazy_times,
            mounts::remounted_in_place;
        IdMaps:
            id_mapped::what_is_made_has_mapped_owners,
            id_mapped::owners_are_given_by_mapped_ids,
            id_mapped::rights_are_those_of_mapped_ids,
            id_mapped::directories_hand_their_group_on,
            id_mapped::access_lists_are_mapped,
            id_mapped::names_and_attributes,
            id_mapped::set_id_bits_go_with_a_write;
        Crash:
            unlinked::open_and_nameless_files_go_in_a_crash;
    }
}
