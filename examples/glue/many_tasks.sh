#!/usr/bin/env bash
# Table 5: GLUE++ with sixteen tasks, one model per task and MT-TaG. The paper's encoder is BERT large.
source "$(dirname "$0")/stages.sh"
TASKS=$TASKS,${MORE:-cb,copa,multirc,boolq,imdb,rotten_tomatoes,yelp,wic}
single single_task "$TASKS" "$@"
mixture many_mt_tag mt_tag "$TASKS" "$@"
tuned many_mt_tag mt_tag "$TASKS" "$@"
compare "$TASKS" single_task many_mt_tag
