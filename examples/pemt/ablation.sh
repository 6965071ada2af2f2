#!/usr/bin/env bash
# Table 6: random initial prompts, no prompts, no sources, and bottlenecks instead of LoRA. The last row is PEMT with the
# gate of its authors' code.
source "$(dirname "$0")/runs.sh"
sources lora "$SOURCES" "$@"
sources random "$SOURCES" --prompt-init random "$@"
sources no_prompt "$SOURCES" --no-prompt "$@"
sources bottleneck "$SOURCES" --adapter bottleneck "$@"
targets pemt "$TASKS" "${TARGET[@]}" --pemt-sources "$(borrowed lora "$SOURCES")" "$@"
targets no_description "$TASKS" "${TARGET[@]}" --pemt-sources "$(borrowed random "$SOURCES")" --prompt-init random "$@"
targets no_correlation "$TASKS" "${TARGET[@]}" --pemt-sources "$(borrowed no_prompt "$SOURCES")" --no-prompt "$@"
targets target_adapter "$TASKS" "${TARGET[@]}" "$@"
targets bottleneck "$TASKS" "${TARGET[@]}" --pemt-sources "$(borrowed bottleneck "$SOURCES")" --adapter bottleneck "$@"
targets gate_activations "$TASKS" "${TARGET[@]}" --pemt-sources "$(borrowed lora "$SOURCES")" --gate-input activations "$@"
compare "$TASKS" pemt no_description no_correlation target_adapter bottleneck gate_activations
