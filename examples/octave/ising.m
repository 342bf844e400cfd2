% ising.m: the energy of a 64 x 64 Ising lattice over 6000 sweeps
sweeps = 6000;
if isfile("state.mat")
  load("state.mat");
  rand("twister", seed);
  printf("going on from %d\n", done);
else
  rand("twister", 7);
  done = 0; spins = 2 * (rand(64) < 0.5) - 1; energy = zeros(1, sweeps);
end
[column, row] = meshgrid(1:64);
while done < sweeps
  for colour = 0:1
    field = circshift(spins, 1) + circshift(spins, -1) + circshift(spins, 1, 2) + circshift(spins, -1, 2);
    flips = mod(row + column, 2) == colour & rand(64) < exp(-0.88 * spins .* field);
    spins(flips) = -spins(flips);
  end
  done += 1;
  energy(done) = -mean((spins .* (circshift(spins, 1) + circshift(spins, 1, 2)))(:));
  told = isfile("stop.now");
  if told || mod(done, 250) == 0
    seed = rand("twister");
    save("-binary", "state.part", "done", "spins", "energy", "seed");
    rename("state.part", "state.mat");  % so that state.mat is never half a file
  end
  if told
    delete("stop.now");
    exit(0);
  end
end
file = fopen("result.txt", "w");
fprintf(file, "%.17g\n", energy);
fclose(file);
printf("mean energy %.4f\n", mean(energy));
