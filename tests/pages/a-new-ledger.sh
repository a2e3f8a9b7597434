# Another directory with a ledger of its own, outside any agent session.
cd .. && mkdir -p notes && cd notes && gatebook init > /dev/null
unset CODEX_THREAD_ID
