# bootstrap.R: how long an eruption is after waiting for 70 minutes, from 3000 resamples of `faithful`
draws <- 3000
if (file.exists("state.rds")) {
  s <- readRDS("state.rds")
  .Random.seed <- s$seed
  cat("going on from", s$done, "\n")
} else {
  set.seed(7)
  s <- list(done = 0, fits = numeric(draws), seed = .Random.seed)
}

save_state <- function() {
  saveRDS(s, "state.part")
  invisible(file.rename("state.part", "state.rds"))  # so that state.rds is never half a file
}

tryCatch(
  while (s$done < draws) {
    rows <- sample(nrow(faithful), replace = TRUE)
    fit <- predict(loess(eruptions ~ waiting, faithful[rows, ]), 70)
    suspendInterrupts({  # s changes as a whole, together with the random numbers
      s$done <- s$done + 1
      s$fits[s$done] <- fit
      s$seed <- .Random.seed
      if (s$done %% 100 == 0) save_state()
    })
  },
  interrupt = function(signal) {
    save_state()
    quit(status = 1)
  }
)
write.csv(data.frame(fit = sprintf("%a", s$fits)), "result.csv")
print(quantile(s$fits, c(0.025, 0.975)))
